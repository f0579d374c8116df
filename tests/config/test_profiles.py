"""What can be wrong with a profile, told when the configuration is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.app import config_of, read_config
from gateway.config import load_text
from gateway.errors import ConfigErrors
from gateway.plugins import load_plugins
from gateway.profiles import HEADS, profiles_of
from gateway.protocol.methods import METHODS

ENGINES = [{"id": "papers", "kind": "memory"}, {"id": "news", "kind": "memory"}]


def faults(*profiles: Any, **sections: Any) -> list[str]:
    with pytest.raises(ConfigErrors) as refused:
        config_of({"engines": ENGINES, "profiles": list(profiles), **sections}, Path.cwd(), load_plugins())
    return [f"{error.path}: {error.message}" for error in refused.value.errors]


def test_everything_that_is_wrong_with_profiles_is_told_at_once() -> None:
    assert faults(
        {"name": "index", "engines": ["paper"]},
        {"name": "a", "engines": []},
        {"name": "a", "defaults": {"candidatek": 5, "rerank": {"topn": 3}, "filter": {}, "sessionId": "s"}},
        {"name": "b", "filter": {"and": []}},
        {"name": "c", "defaults": {"k": 0, "zz": 1, "mmr": {"lambda": 2}, "fusion": {"rrfK": 0}}},
        {"name": "d", "defaults": {"candidateK": 5, "k": 10}},
        {"name": "e", "fusion": {"method": "rff"}},
    ) == [
        "profiles[6].fusion.method: must be one of rrf, weighted, convex, confidence (did you mean 'rrf'?)",
        "profiles[0].name: 'index' begins the path of RCP methods",
        "profiles[0].engines[0]: there is no engine 'paper' (did you mean 'papers'?)",
        "profiles[1].engines: name at least one engine, or leave the key out for all",
        "profiles[2].name: the name 'a' is already taken",
        "profiles[2].defaults.candidatek: unknown option (did you mean 'candidateK'?)",
        "profiles[2].defaults.rerank.topn: unknown option (did you mean 'topN'?)",
        "profiles[2].defaults.filter: use the profile's own 'filter'",
        "profiles[2].defaults.sessionId: it belongs to a single request",
        "profiles[3].filter.and: and needs a non-empty array",
        "profiles[4].defaults.zz: unknown option",
        "profiles[4].defaults.k: k must be 1 or more",
        "profiles[4].defaults.mmr.lambda: mmr.lambda must lie between 0 and 1",
        "profiles[4].defaults.fusion.rrfK: fusion.rrfK must be 1 or more",
        "profiles[5].defaults.candidateK: candidateK must be at least k",
    ]


@pytest.mark.parametrize("name", sorted({*HEADS, "x-vendor", "x-"}))
def test_a_name_that_begins_a_method_is_refused(name: str) -> None:
    assert faults({"name": name}) == [f"profiles[0].name: {name!r} begins the path of RCP methods"]


def test_the_heads_are_those_of_all_methods() -> None:
    assert {name.split("/")[0] for name in METHODS} < HEADS
    assert {"retrieve", "index", "memory", "catalog", "shutdown", "notifications"} <= HEADS


@pytest.mark.parametrize("name", ["", "a/b", "a b", "..", "é", "a" * 65, "-a", "%61"])
def test_a_name_is_one_segment_of_a_path(name: str) -> None:
    (told,) = faults({"name": name})
    assert "one segment of a path" in told


def test_the_place_of_a_fault_is_its_line(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "engines: [{id: papers, kind: memory}]\n"
        "profiles:\n  - name: a\n    defaults:\n      rerank: {topN: 5}\n      k: many\n"
    )
    with pytest.raises(ConfigErrors) as refused:
        read_config(path, load_plugins())
    assert str(refused.value) == f"{path}:6: profiles[0].defaults.k: k: expected int, got str"


def test_fusion_left_out_of_a_profile_is_the_gateways_own() -> None:
    text = json.dumps(
        {
            "engines": ENGINES,
            "fusion": {"window": 9, "method": "weighted"},
            "profiles": [{"name": "a", "fusion": {"k": 3}}, {"name": "b"}],
        }
    )
    first, second = load_text(text, base_dir=Path.cwd()).profiles
    assert first.fusion is not None
    assert (first.fusion.k, first.fusion.window, first.fusion.method) == (3, 9, "weighted")
    assert second.fusion is None


def test_a_fault_of_the_gateways_fusion_is_told_once() -> None:
    assert faults({"name": "a", "fusion": {"k": 3}}, fusion={"window": 0}) == ["fusion.window: must be 1 or more"]


def test_options_are_read_as_a_request_would_be() -> None:
    config = config_of(
        {"engines": ENGINES, "profiles": [{"name": "a", "defaults": {"k": 5.0, "rerank": False}}]},
        Path.cwd(),
        load_plugins(),
    )
    (profile,) = profiles_of(config)
    assert profile.options == {"k": 5, "rerank": False}
