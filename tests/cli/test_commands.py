"""The commands on a small configuration: what they print, where, and with which exit code."""

from __future__ import annotations

import importlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway import Gateway
from gateway.cli import add as add_module
from gateway.cli.main import cli
from gateway.cli.options import retrieve_params
from gateway.errors import BackendUnavailable
from gateway.plugins import Plugins, load_plugins
from gateway_memory.engine import MemoryKind
from tests.cli.conftest import Run


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


# query


def test_query_prints_a_ranking_that_a_person_can_read(run: Run) -> None:
    done = run("query", "rank fusion")
    assert (done.code, done.err) == (0, "")
    assert lines(done.out) == [
        "#   score  engines        title        snippet",
        "1  0.0328  first, second  Rank fusion  ranks are fused by reciprocal rank",
        "2  0.0161  first          Filters      a filter is never lost, whatever its rank",
    ]


def test_a_cursor_that_ends_with_the_command_is_not_printed(run: Run) -> None:
    done = run("query", "rank", "-k", "1")
    assert (done.code, done.err) == (0, "")
    assert "nextCursor" in json.loads(run("query", "rank", "-k", "1", "--json").out)


def test_query_prints_the_whole_result_as_json(run: Run) -> None:
    done = run("query", "rank fusion", "--json", "-k", "1")
    result = json.loads(done.out)
    assert [hit["id"] for hit in result["hits"]] == ["fusion"]
    assert done.err == ""


def test_query_takes_a_filter_engines_and_a_fusion_method(run: Run) -> None:
    only_german = json.dumps({"field": "lang", "op": "eq", "value": "de"})
    done = run("query", "rank", "--json", "--filter", only_german, "--engine", "first", "--fusion", "weighted")
    assert [hit["id"] for hit in json.loads(done.out)["hits"]] == ["filters"]


def test_notes_go_to_stderr_and_the_answer_to_stdout(run: Run) -> None:
    done = run("query", "rank", "--filter", '{"field": "lang", "op": "eq", "value": "en"}')
    assert done.code == 0
    assert "Rank fusion" in done.out
    assert "note: " not in done.out
    assert done.err.startswith("note: ")
    assert "second" in done.err, "it does not declare the field"


def test_no_hits_is_said_on_stderr_and_is_no_failure(run: Run) -> None:
    done = run("query", "zyzzyva")
    assert (done.code, done.out, done.err) == (0, "", "no hits\n")


def test_a_long_passage_is_cut_to_one_line(run: Run, folder: Path) -> None:
    config = {"engines": [{"id": "a", "kind": "memory", "with": {"documents": [{"id": "x", "text": "word " * 500}]}}]}
    (folder / "long.yaml").write_text(json.dumps(config))
    _, row = lines(run("query", "word", "-c", "long.yaml").out)
    assert row.endswith("…")
    assert 120 < len(row) <= 160


def test_what_an_engine_returns_cannot_move_the_cursor_or_forge_a_row(run: Run, folder: Path) -> None:
    evil = "rank \x1b[2J\x1b]0;owned\x07\u202e\x9b31m \u2028 \r\n9  9.9999  first  forged"
    document = {"id": "\x1b[31mid", "text": evil, "meta": {"title": evil}}
    config = {"engines": [{"id": "a", "kind": "memory", "with": {"documents": [document]}}]}
    (folder / "evil.yaml").write_text(json.dumps(config))
    done = run("query", "rank", "-c", "evil.yaml")
    assert done.code == 0
    assert not set(done.out) & set("\x1b\x07\x9b\u202e\u2028\r")
    assert not any(line.startswith("9") for line in done.out.splitlines())
    assert "[bold]" not in run("query", "rank", "-c", "evil.yaml").out


def test_markup_in_a_hit_is_text(run: Run, folder: Path) -> None:
    document = {"id": "x", "text": "[red]rank[/red] [/nothing]", "meta": {"title": "[bold]"}}
    config = {"engines": [{"id": "a", "kind": "memory", "with": {"documents": [document]}}]}
    (folder / "markup.yaml").write_text(json.dumps(config))
    assert "[red]rank[/red] [/nothing]" in run("query", "rank", "-c", "markup.yaml").out


@pytest.mark.parametrize(
    "hits",
    [
        [{"id": "a"}],
        [{"id": "a", "score": None, "text": None, "meta": None}],
        [{"id": 7, "score": "high", "text": {"a": 1}, "meta": [1], "citation": "x"}],
        [{"id": "a", "score": 1e400, "meta": {"engines": "abc", "title": {}}}],
        ["not a hit", None, 5],
        [{}],
    ],
)
def test_any_answer_of_a_stranger_can_be_printed(run: Run, monkeypatch: pytest.MonkeyPatch, hits: list[Any]) -> None:
    async def call(self: object, method: str, params: object = None) -> dict[str, Any]:
        return {"hits": hits, "usage": "none", "_meta": 5}

    monkeypatch.setattr(Gateway, "call", call)
    done = run("query", "x")
    assert (done.code, done.err) == (0, "")


# check, plugins, catalog


def test_check_says_what_the_configuration_means(run: Run) -> None:
    done = run("check")
    assert done.code == 0
    assert lines(done.out) == [
        "engine  kind    offers                                   state",
        "first   memory  retrieve (sparse), index, filter (lang)",
        "second  memory  retrieve (sparse), index, filter",
    ]
    assert done.err == "rcp-gateway: gateway.yaml is valid\n"


def test_check_opens_the_engines_when_asked_to_and_fails_if_one_does_not_open(run: Run, folder: Path) -> None:
    assert run("check", "--open").code == 0
    (folder / "down.yaml").write_text(
        "engines:\n  - {id: a, kind: memory}\n  - {id: up, kind: rcp, with: {url: 'http://127.0.0.1:9/rcp'}}\n"
    )
    assert run("check", "-c", "down.yaml").code == 0, "nothing is opened"
    done = run("check", "-c", "down.yaml", "--open", "--json")
    states = {row["id"]: row["state"] for row in json.loads(done.out)}
    assert states["a"] == "open"
    assert "reached" in states["up"]
    assert (done.code, done.err) == (1, "rcp-gateway: down.yaml is valid; not every engine opened\n")


def test_check_says_that_filters_of_profiles_are_checked_when_the_engines_are_open(run: Run, folder: Path) -> None:
    (folder / "p.yaml").write_text(
        "engines: [{id: a, kind: memory}]\nprofiles:\n  - {name: p, filter: {field: nope, op: eq, value: 1}}\n"
    )
    done = run("check", "-c", "p.yaml")
    assert done.code == 0
    assert done.err.startswith("rcp-gateway: p.yaml is valid; ")
    assert done.err.endswith(": check --open\n")
    opened = run("check", "--open", "-c", "p.yaml")
    assert opened.code == 2
    assert "nope" in opened.err


def test_check_never_shows_a_secret(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "THE-SECRET")
    (folder / "secret.yaml").write_text(
        "engines:\n"
        "  - {id: a, kind: rcp, with: {url: 'http://u:THE-SECRET@127.0.0.1:9/rcp?key=THE-SECRET'}}\n"
        "  - {id: b, kind: rcp, with: {url: 'http://127.0.0.1:9/rcp', token: {env: TOKEN}}}\n"
    )
    for command in (
        ("check",), ("check", "--open"), ("check", "--open", "--json"), ("query", "x"), ("catalog", "--json"),
    ):  # fmt: skip
        done = run(*command, "-c", "secret.yaml")
        assert "THE-SECRET" not in done.out + done.err, command
        done = run("--debug", *command, "-c", "secret.yaml")
        assert "THE-SECRET" not in done.out + done.err, command


class Fails(MemoryKind):
    name = "fails"

    def open(self, config: Any, context: Any) -> Any:
        raise KeyError("no table, api_key=THE-SECRET\n")


@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_check_says_with_which_exception_an_engine_failed_to_open_and_shows_the_traceback_when_asked(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, debug: tuple[str, ...]
) -> None:
    def stranger() -> Plugins:
        plugins = load_plugins()
        plugins.kinds["fails"] = Fails()
        return plugins

    monkeypatch.setattr("gateway.plugins.load_plugins", stranger)
    (folder / "f.yaml").write_text("engines: [{id: m, kind: memory}, {id: a, kind: fails}]\n")
    done = run("check", "--open", "-c", "f.yaml", *debug)
    assert done.code == 1
    assert "it could not be opened: KeyError: 'no table, api_key=***" in done.out
    assert "THE-SECRET" not in done.out + done.err
    assert ("Traceback" in done.err) is bool(debug)


class NeedsMuch(MemoryKind):
    name = "needs-much"
    extra = "much"

    def requires(self, config: Any) -> list[str]:
        return ["no_such_module", "no_such_package.inner", "json"]


class Breaks(MemoryKind):
    name = "breaks"

    def offers(self, config: Any) -> Any:
        raise ZeroDivisionError("no such thing,\nkey api_key=THE-SECRET")


class Vague(MemoryKind):
    name = "vague"

    def offers(self, config: Any) -> Any:
        return None


class Forgetful(MemoryKind):
    name = "forgetful"

    def embedders(self, config: Any) -> Any:
        return config.nothing


@pytest.mark.parametrize("command", [("check",), ("query", "x"), ("check", "--open")])
def test_a_kind_that_cannot_say_what_it_offers_is_one_fault_among_the_others(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def strangers() -> Plugins:
        plugins = load_plugins()
        kinds = (Breaks(), Vague(), Forgetful())
        plugins.kinds |= {kind.name: kind for kind in kinds}
        plugins.found.append(type(plugins.found[0])("s", "rcp-stranger", "1", kinds=tuple(kind.name for kind in kinds)))
        return plugins

    monkeypatch.setattr("gateway.plugins.load_plugins", strangers)
    (folder / "s.yaml").write_text(
        "engines:\n  - {id: a, kind: breaks}\n  - {id: b, kind: vague}\n  - {id: c, kind: forgetful}\n"
        "  - {id: d, kind: memory, weigth: 2}\n"
    )
    done = run(*command, "-c", "s.yaml")
    assert (done.code, done.out) == (2, "")
    assert lines(done.err) == [
        (
            "s.yaml:2: engines[0].with: engine 'a': the kind breaks of rcp-stranger failed in offers(): "
            "ZeroDivisionError: no such thing, key api_key=***"
        ),
        (
            "s.yaml:3: engines[1].with: engine 'b': the kind vague of rcp-stranger failed in offers(): "
            "TypeError: NoneType is not an instance of Capabilities"
        ),
        (
            "s.yaml:4: engines[2].with: engine 'c': the kind forgetful of rcp-stranger failed in embedders(): "
            "AttributeError: 'MemoryConfig' object has no attribute 'nothing'"
        ),
        "s.yaml:5: engines[3].weigth: unknown key (did you mean 'weight'?)",
    ]


def test_check_says_which_extra_installs_what_is_missing(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stranger() -> Plugins:
        plugins = load_plugins()
        plugins.kinds["needs-much"] = NeedsMuch()
        plugins.found[0] = type(plugins.found[0])("s", "rcp-stranger", "1", kinds=("needs-much",))
        return plugins

    monkeypatch.setattr("gateway.plugins.load_plugins", stranger)
    (folder / "much.yaml").write_text("engines: [{id: a, kind: needs-much}]\n")
    done = run("check", "-c", "much.yaml", "--json")
    (row,) = json.loads(done.out)
    assert row["state"] == "needs no_such_module, no_such_package.inner; pip install 'rcp-stranger[much]'"
    assert done.code == 0


def test_check_warns_of_a_broken_plugin_that_is_not_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Plugins:
        plugins = load_plugins()
        plugins.found.append(type(plugins.found[0])("x", "rcp-x", "1", error="ImportError: no"))
        return plugins

    monkeypatch.setattr("gateway.plugins.load_plugins", broken)
    done = run("check")
    assert done.code == 0
    assert "rcp-gateway: warning: plugin x of rcp-x: ImportError: no\n" in done.err


def test_plugins_lists_what_is_installed(run: Run) -> None:
    rows = json.loads(run("plugins", "--json").out)
    assert {"memory", "sqlite", "rcp", "qdrant", "models"} <= {row["name"] for row in rows}
    assert not [row for row in rows if row["distribution"].startswith("rcp-gateway") and row["error"]]
    assert "memory" in run("plugins").out


def test_catalog_lists_the_engines_of_a_gateway(run: Run) -> None:
    assert [entry["id"] for entry in json.loads(run("catalog", "--json").out)["engines"]] == ["first", "second"]
    assert "first" in run("catalog").out


# add


@pytest.fixture
def store(folder: Path) -> Path:
    (folder / "docs").mkdir()
    (folder / "docs" / "a.md").write_text("# Apples\n\nApples are round.\n\n# Pears\n\nPears are not.\n" * 20)
    (folder / "docs" / "b.txt").write_text("Plums are blue.\n")
    (folder / "docs" / "c.bin").write_bytes(b"\0\1")
    (folder / "store.yaml").write_text(
        "engines:\n  - {id: words, kind: sqlite, with: {path: words.sqlite}}\n"
        "  - {id: titles, kind: static-embedder}\nwrites: words\n"
    )
    return folder


def test_add_splits_files_into_passages_that_query_finds(run: Run, store: Path) -> None:
    done = run("add", "docs", "-c", "store.yaml")
    assert (done.code, done.out) == (0, "")
    assert "skipped docs/c.bin: not a Markdown or text file" in done.err
    assert done.err.splitlines()[-1].startswith("added ")
    assert "b.txt#0" in run("query", "plums", "-c", "store.yaml", "--json").out
    again = run("add", "docs", "-c", "store.yaml")
    assert again.code == 0
    assert len(json.loads(run("query", "plums", "-c", "store.yaml", "--json").out)["hits"]) == 1, (
        "replaced, not doubled"
    )


def test_ids_are_paths_from_the_configurations_folder_or_from_base(run: Run, store: Path) -> None:
    run("add", "docs/b.txt", "-c", "store.yaml")
    run("add", "docs/b.txt", "-c", "store.yaml", "--base", "docs")
    ids = [hit["id"] for hit in json.loads(run("query", "plums", "-c", "store.yaml", "--json").out)["hits"]]
    assert sorted(ids) == ["b.txt#0", "docs/b.txt#0"]


def test_the_progress_bar_is_for_terminals(run: Run, store: Path) -> None:
    done = run("add", "docs", "-c", "store.yaml")
    assert "\x1b" not in done.err + done.out
    assert "adding" not in done.err


def test_nothing_to_add_is_a_failure(run: Run, store: Path) -> None:
    done = run("add", "docs/c.bin", "-c", "store.yaml")
    assert done.code == 1
    assert done.err.splitlines()[-1] == "rcp-gateway: nothing to add"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--to", "wrods"],
            "rcp-gateway: there is no engine 'wrods' (did you mean 'words'?)",
        ),
        (["--to", "titles"], "rcp-gateway: engine 'titles' (kind static-embedder) cannot be written to"),
        (["--url", "http://127.0.0.1:9/rcp", "--to", "words"], "rcp-gateway: --to names an engine of a configuration"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_anything_is_read(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.setattr(add_module, "read_documents", None)
    done = run("add", "docs", "-c", "store.yaml", *arguments)
    assert done.code == 2
    assert done.err.startswith(told)


def test_without_a_target_add_says_how_to_name_one(run: Run, store: Path) -> None:
    (store / "read-only.yaml").write_text("engines: [{id: words, kind: sqlite, with: {path: words.sqlite}}]\n")
    done = run("add", "docs", "-c", "read-only.yaml")
    assert (done.code, done.err) == (
        2, "rcp-gateway: name the engine to write to with --to, or set `writes:` in the configuration\n"
    )  # fmt: skip


# Errors


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["bogus"], 2, "rcp-gateway: No such command 'bogus'. (see rcp-gateway --help)"),
        (["query"], 2, "rcp-gateway: Missing argument 'TEXT'. (see rcp-gateway query --help)"),
        (["query", "x", "--nope"], 2, "rcp-gateway: No such option"),
        (["query", "x", "-k", "0"], 2, "rcp-gateway: Invalid value for '-k'"),
        (["query", "x", "-k", "many"], 2, "rcp-gateway: Invalid value for '-k'"),
        (["query", "x", "--mode", "fast"], 2, "rcp-gateway: Invalid value for '--mode'"),
        (["query", "x", "--filter", "{"], 2, "rcp-gateway: Invalid value for --filter: not JSON"),
        (["query", "x", "--filter", "[" * 100_000], 2, "rcp-gateway: Invalid value for --filter: not JSON"),
        (["query", "x", "--filter", '{"field": "nope", "op": "eq", "value": 1}'], 1, "rcp-gateway: "),
        (["query", "x", "--engine", "third"], 1, "rcp-gateway: there is no such engine: _meta"),
        (["query", "x", "--fusion", "magic"], 1, "rcp-gateway: fusion.method 'magic' is not offered (offered: rrf, "),
        (["query", "x", "-k", "100000"], 0, ""),
        (["query", "x", "-c", "missing.yaml"], 2, "rcp-gateway: cannot read missing.yaml: No such file or directory"),
        (["query", "x", "-c", "."], 2, "rcp-gateway: cannot read .: Is a directory"),
        (["query", "x", "--url", "nonsense"], 2, "rcp-gateway: not an http or https URL with a host"),
        (["query", "x", "--url", "http://127.0.0.1:9/rcp"], 1, "rcp-gateway: http://127.0.0.1:9/rcp cannot be reached"),
        (["query", "x", "--url", "http://u:THE-SECRET@127.0.0.1:9/rcp?key=THE-SECRET"], 1, "rcp-gateway: http://127"),
        (["add", "missing"], 2, "rcp-gateway: Invalid value for 'PATHS...': Path 'missing' does not exist."),
        (["add"], 2, "rcp-gateway: Missing argument 'PATHS...'."),
        (["serve", "--port", "65536"], 2, "rcp-gateway: Invalid value for '--port'"),
        (["serve", "-c", "missing.yaml"], 2, "rcp-gateway: cannot read missing.yaml"),
        (["stdio", "-c", "missing.yaml"], 2, "rcp-gateway: cannot read missing.yaml"),
        (["demo", "-c", "missing.yaml"], 2, "rcp-gateway: cannot read missing.yaml"),
    ],
)  # fmt: skip
def test_an_error_is_one_clear_line_with_its_exit_code(run: Run, arguments: list[str], code: int, told: str) -> None:
    done = run(*arguments)
    assert done.code == code, done.err
    assert done.err.startswith(told)
    assert "Traceback" not in done.err
    assert "THE-SECRET" not in done.err
    if code:
        assert done.out == ""
        assert len(done.err.splitlines()) == 1


def test_all_faults_of_a_configuration_come_at_once_with_their_lines(run: Run, folder: Path) -> None:
    (folder / "bad.yaml").write_text("engines:\n  - id: a\n    kind: memory\n    timout: 3\nlog: {level: loud}\n")
    for command in (["check"], ["query", "x"], ["serve"], ["stdio"], ["catalog"], ["demo"], ["add", "bad.yaml"]):
        done = run(*command, "-c", "bad.yaml")
        assert (done.code, done.out) == (2, "")
        assert done.err.splitlines() == [
            "bad.yaml:4: engines[0].timout: unknown key (did you mean 'timeout'?)",
            "bad.yaml:5: log.level: must be one of debug, info, warning, error, not the text 'loud'",
        ]


def test_without_a_configuration_it_says_how_to_name_one(run: Run, folder: Path) -> None:
    (folder / "gateway.yaml").unlink()
    done = run("query", "x")
    assert done.code == 2
    assert done.err.startswith("rcp-gateway: there is no gateway.yaml here; name a configuration with --config")


def test_a_registry_is_a_configuration_too(run: Run, folder: Path) -> None:
    (folder / "rcp.json").write_text('{"engines": [{"id": "up", "url": "http://127.0.0.1:9/rcp"}]}')
    done = run("check", "-c", "rcp.json")
    assert done.code == 0
    assert "up" in done.out
    (folder / "rcp.json").write_text('{"engines": [{"id": "up", "url": "x"},\n {"id": "up"}]}')
    done = run("check", "-c", "rcp.json")
    assert done.code == 2
    assert [line.split(": ")[0] for line in done.err.splitlines()] == ["rcp.json:1", "rcp.json:2", "rcp.json:2"]


def test_without_arguments_it_shows_what_there_is(run: Run) -> None:
    done = run()
    assert done.code == 2
    assert done.err.startswith("Usage: rcp-gateway")
    for command in cli.commands:
        assert f"  {command} " in done.err


@pytest.mark.parametrize("command", [[], *([name] for name in cli.commands)])
def test_every_command_has_help(run: Run, command: list[str]) -> None:
    done = run(*command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: rcp-gateway")


BUG = "rcp-gateway: internal error ({}); rcp-gateway --debug … shows it"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ZeroDivisionError("THE-SECRET"), 1, BUG.format("ZeroDivisionError")),
        (RecursionError(), 1, BUG.format("RecursionError")),
        (OSError(28, "No space left on device", "/data/x"), 1, "rcp-gateway: /data/x: No space left on device"),
        (OSError("odd"), 1, "rcp-gateway: odd"),
        (KeyboardInterrupt(), 130, ""),
        (BackendUnavailable("a\nb at http://u:THE-SECRET@h/"), 1, "rcp-gateway: a b at http://***@h/ (-32010)"),
        (BackendUnavailable("all failed", data={"engines": {"a": {"message": "down"}, "b": "x\ny"}}), 1,
         "rcp-gateway: all failed (-32010)\n  a: down\n  b: x y"),
        (ExceptionGroup("g", [BackendUnavailable("inner")]), 1, "rcp-gateway: inner (-32010)"),
        (ExceptionGroup("g", [ValueError(), ValueError()]), 1, BUG.format("ExceptionGroup")),
    ],
)  # fmt: skip
def test_no_exception_becomes_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, told: str
) -> None:
    def fail(path: Path) -> None:
        raise error

    # The package shows its function of that name, which hides the module.
    monkeypatch.setattr(importlib.import_module("gateway.cli.main"), "_load", fail)
    done = run("query", "x")
    assert (done.code, done.out, done.err.rstrip("\n")) == (code, "", told)
    if code == 1:
        assert "Traceback" in run("--debug", "query", "x").err


def test_the_log_of_a_command_is_quiet_unless_asked(run: Run) -> None:
    assert run("query", "rank").err == ""
    assert "engine first is open" in run("--debug", "query", "rank").err
    assert logging.getLogger("gateway").level == logging.DEBUG


def test_explain_takes_a_whole_json_rpc_request_or_its_params(run: Run, folder: Path) -> None:
    params = {"query": "rank", "filter": {"field": "lang", "op": "eq", "value": "en"}}
    frame = {"jsonrpc": "2.0", "id": "a", "method": "retrieve", "params": params}
    told = []
    for given in (frame, params):
        (folder / "request.json").write_text(json.dumps(given))
        outcome = run("explain", "request.json", "--json")
        assert outcome.code == 0, outcome.err
        told.append(json.loads(outcome.out))
    assert told[0] == told[1]
    assert {row["engine"]: row["state"] for row in told[0]["engines"]} == {"first": "asked", "second": "unable"}


@pytest.mark.parametrize("frame", ['{"params": 3}', '{"jsonrpc": "2.0", "method": "embed", "params": {}}'])
def test_explain_refuses_what_is_no_retrieve(run: Run, folder: Path, frame: str) -> None:
    (folder / "request.json").write_text(frame)
    outcome = run("explain", "request.json")
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert "REQUEST_FILE" in outcome.err


def test_probe_prints_what_it_found_and_leaves_nothing(run: Run) -> None:
    outcome = run("probe", "first")
    assert outcome.code == 0, outcome.out
    assert "does lang ne 'alpha' mean what it means everywhere?" in outcome.out
    assert "! " not in outcome.out


# Profiles, options of retrieve, errors as JSON, delete


def profiled(folder: Path) -> None:
    with (folder / "gateway.yaml").open("a") as file:
        file.write("profiles:\n  - {name: one, engines: [first], defaults: {k: 1}}\n  - {name: two}\n")


def test_a_profile_is_asked_by_name_and_its_defaults_hold_until_an_option_says_otherwise(
    run: Run, folder: Path
) -> None:
    profiled(folder)
    assert len(json.loads(run("query", "rank", "--json", "--profile", "one").out)["hits"]) == 1
    assert len(json.loads(run("query", "rank", "--json", "--profile", "one", "-k", "5").out)["hits"]) == 2
    assert [one["id"] for one in json.loads(run("catalog", "--json", "--profile", "one").out)["engines"]] == ["first"]


def test_a_profile_that_there_is_not_is_told_with_those_that_there_are(run: Run, folder: Path) -> None:
    profiled(folder)
    for command in (("query", "rank"), ("stdio",)):
        done = run(*command, "--profile", "tow")
        assert (done.code, done.out) == (2, "")
        assert done.err == (
            "rcp-gateway: profiles: there is no profile 'tow' (did you mean 'two'?) (there are one, two)\n"
        )


def test_options_become_those_of_the_protocol() -> None:
    given = {
        "k": 3, "mode": "dense", "candidate_k": 9, "min_score": 0.5, "token_budget": 100, "session": "s", "cursor": "c",
        "filter": {"field": "lang", "op": "exists"}, "rerank": "llm", "rewrite": "hyde", "mmr": 0.0,
        "recency": "meta:date:30", "engines": ("a",), "fusion": "rrf",
    }  # fmt: skip
    assert retrieve_params("q", given) == {
        "query": "q", "k": 3, "mode": "dense", "candidateK": 9, "minScore": 0.5, "tokenBudget": 100, "sessionId": "s",
        "cursor": "c", "filter": {"field": "lang", "op": "exists"}, "rerank": {"method": "llm"}, "rewrite": "hyde",
        "mmr": {"lambda": 0.0}, "recency": {"field": "meta:date", "halfLifeDays": 30.0}, "fusion": {"method": "rrf"},
        "_meta": {"x-gateway": {"engines": ["a"]}},
    }  # fmt: skip
    assert retrieve_params("q", {"rerank": "off", "rewrite": "off"}) == {
        "query": "q",
        "rerank": False,
        "rewrite": False,
    }
    assert retrieve_params("q", {"rerank": "on"}) == {"query": "q", "rerank": {}}
    assert retrieve_params("q", {"k": None, "engines": ()}) == {"query": "q"}


def test_every_option_of_query_reaches_the_gateway(run: Run) -> None:
    """Nothing is told of an option that is passed on and ignored: each of these is refused, or changes the answer."""
    assert run("query", "rank", "--min-score", "9").err.startswith("no hits\n")
    assert run("query", "rank", "--cursor", "made-up").code == 1
    assert run("query", "rank", "--candidate-k", "1", "-k", "2").code == 1
    assert run("query", "rank", "--mode", "dense").code == 1


@pytest.mark.parametrize("value", ["date", ":30", "date:", "date:0", "date:-1", "date:nan", "date:inf", "date:x"])
def test_a_recency_without_a_field_or_a_number_of_days_is_a_fault_of_usage(run: Run, value: str) -> None:
    done = run("query", "rank", "--recency", value)
    assert done.code == 2
    assert "published:30" in done.err


def test_with_json_an_error_is_json_too(run: Run) -> None:
    done = run("query", "rank", "--json", "--filter", '{"field": "nope", "op": "eq", "value": 1}')
    assert done.code == 1
    assert json.loads(done.out) == {
        "error": {
            "code": -32602,
            "message": "not a declared filter field; there are lang",
            "data": {"field": "nope", "path": "filter.field"},
        }
    }
    assert done.err == "rcp-gateway: not a declared filter field; there are lang: nope (-32602)\n"
    absent = run("query", "rank", "--json", "-c", "absent.yaml")
    assert absent.code == 2
    assert "absent.yaml" in json.loads(absent.out)["error"]["message"]


def test_what_was_added_can_be_deleted_by_its_ids(run: Run, folder: Path) -> None:
    (folder / "store.yaml").write_text("engines: [{id: w, kind: sqlite, with: {path: w.sqlite}}]\nwrites: w\n")
    (folder / "a.md").write_text("# One\n\nword\n")
    assert run("add", "a.md", "-c", "store.yaml").code == 0
    done = run("delete", "a.md#0", "a.md#7", "-c", "store.yaml")
    assert (done.code, done.out, done.err) == (0, "", "deleted 1 of 2 from w\n")
    assert run("query", "word", "-c", "store.yaml").err == "no hits\n"
    assert run("delete", "a.md#0", "-c", "store.yaml", "--to", "nobody").code == 2
