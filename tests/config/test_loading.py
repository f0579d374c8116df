"""Reading a configuration: what does not fit into a golden file."""

from __future__ import annotations

import copy
import json
import os
import pickle
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import FAULT, GatewayConfig, Walker, load, load_text, nearest
from gateway.config.yaml import parse
from gateway.errors import ConfigError, ConfigErrors, GatewayError
from gateway.secret import Secret

VALID = "engines: [{id: a, kind: memory}]\n"


def read(type_: Any, value: Any, base: Path = Path("/base")) -> tuple[Any, list[str]]:
    walker = Walker(base)
    result = walker.read(type_, value, "at")
    assert walker.errors or result is not FAULT
    return result, [str(error) for error in walker.errors]


def value_of(type_: Any, value: Any) -> Any:
    result, errors = read(type_, value)
    assert errors == []
    return result


def error_of(type_: Any, value: Any) -> str:
    _, errors = read(type_, value)
    (error,) = errors
    return error


# Files


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("missing.yaml", None, "cannot read {path}: No such file or directory"),
        ("latin1.yaml", b"name: caf\xe9\n", "{path} is not UTF-8 text"),
        ("large.yaml", b"#" * (4 * 1024 * 1024 + 1), "{path} is larger than 4194304 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_clear_error(
    tmp_path: Path, name: str, data: bytes | None, told: str
) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigErrors) as caught:
        load(path)
    assert str(caught.value) == told.format(path=path)


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="Is a directory"):
        load(tmp_path)


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\r\nengines:\r\n  - id: a\r\n    kind: memory\r\n")
    config = load(path)
    assert (config.name, config.engines[0].id, config.lines["engines[0].kind"]) == ("x", "a", 4)


def test_paths_start_at_the_files_folder_wherever_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "gateway.yaml").write_text(VALID)
    monkeypatch.chdir(tmp_path)
    config = load(Path("conf/gateway.yaml"))
    assert config.base_dir == tmp_path / "conf"
    assert str(config.source) == "conf/gateway.yaml", "errors name the file as the person did"


def test_what_the_loader_adds_is_not_a_key_of_the_file() -> None:
    for key in ("base_dir", "source", "lines"):
        with pytest.raises(ConfigErrors, match=f"line 2: {key}: unknown key"):
            load_text(f"{VALID}{key}: x\n", base_dir=Path())


def test_an_error_without_a_file_still_names_its_line() -> None:
    with pytest.raises(ConfigErrors) as caught:
        load_text(f"{VALID}\nnmae: x\n", base_dir=Path())
    assert str(caught.value) == "line 3: nmae: unknown key (did you mean 'name'?)"
    (error,) = caught.value.errors
    assert (error.path, error.line, error.source) == ("nmae", 3, "")


def test_every_path_of_the_file_knows_its_line() -> None:
    _, lines = parse('a:\n  - b: 1\n    c:\n      d: x\n  - [2,\n     3]\n"e f":\n')
    assert lines == {
        "": 1, "a": 1, "a[0]": 2, "a[0].b": 2, "a[0].c": 3, "a[0].c.d": 4, "a[1]": 5, "a[1][0]": 5, "a[1][1]": 6,
        "['e f']": 7,
    }  # fmt: skip


# Whatever the text, there is a configuration or a list of errors.

_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["memory", "rcp", "rrf", "all", "a", "b", "dense", "http", "${X}", "~", "yes"]),
)  # fmt: skip
_NAMES = (*GatewayConfig.__struct_encode_fields__, "id", "kind", "with", "weight", "corpus", "timeout", "retry", "port")
_KEYS = st.one_of(st.sampled_from(_NAMES), st.text(max_size=5))
_TREES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_KEYS, inner, max_size=5)),
    max_leaves=20,
)
_ENGINES = st.lists(st.dictionaries(_KEYS, _TREES, max_size=6), max_size=4)


def errors_in(text: str, registry: bool) -> tuple[ConfigError, ...]:
    try:
        config = load_text(text, base_dir=Path("/base"), registry=registry)
    except ConfigErrors as error:
        return error.errors
    assert isinstance(config, GatewayConfig)
    return ()


def assert_total(text: str, *, registry: bool = False) -> None:
    errors = errors_in(text, registry)
    for one in errors:
        assert isinstance(one, ConfigError)
        assert str(one).splitlines() == [str(one)], "one line each"
    located = [one.line for one in errors if one.line is not None]
    assert located == sorted(located), "in file order"


@given(st.text(max_size=200))
def test_any_text_is_a_configuration_or_an_error(text: str) -> None:
    assert_total(text)
    assert_total(text, registry=True)


@given(st.text(alphabet="ab:-{}[]&*!|>'\"#%@`,?~ \n\t0x1.e<", max_size=60))
def test_any_text_that_looks_like_yaml_is_a_configuration_or_an_error(text: str) -> None:
    assert_total(text)


@given(st.dictionaries(_KEYS, _TREES, max_size=6), _ENGINES)
def test_any_tree_of_settings_is_a_configuration_or_an_error(tree: dict[str, Any], engines: list[Any]) -> None:
    for value in (tree, {**tree, "engines": engines}):
        text = json.dumps(value)
        assert_total(text)
        assert_total(text, registry=True)


@given(_TREES)
def test_json_means_the_same_to_the_yaml_reader(tree: Any) -> None:
    text = json.dumps(tree)
    if "NaN" not in text and "Infinity" not in text:
        assert parse(text)[0] == tree


def test_letters_that_json_escapes_in_two_halves_become_one() -> None:
    assert parse(r'["\ud83d\ude00", "a\ud83d"]')[0] == ["\U0001f600", "a\ufffd"]


# The walker


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    size: int = 1
    name: str | None = None


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    inner: Inner = Inner()
    by_name: dict[str, Inner] = msgspec.field(default_factory=dict)
    secret: str | Secret = ""
    renamed: int = msgspec.field(default=0, name="with")

    def __post_init__(self) -> None:
        if self.renamed > 1:
            raise ConfigErrors([ConfigError("too many", path="with"), ConfigError("not like this")])


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (int, 3, 3),
        (int, 3.0, 3),
        (float, 3, 3.0),
        (str, "", ""),
        (bool, False, False),
        (int | None, None, None),
        (str | None, "x", "x"),
        (list[int], [1, 2.0], [1, 2]),
        (tuple[str, ...], ["a"], ("a",)),
        (frozenset[str], ["a", "a"], frozenset({"a"})),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (dict[Colour, Colour], {"red": "blue"}, {Colour.RED: Colour.BLUE}),
        (Colour, "red", Colour.RED),
        (Literal["a", 1], 1, 1),
        (Any, {"x": [1, None]}, {"x": [1, None]}),
        (bool | list[str], ["x"], ["x"]),
        (bool | list[str], True, True),
        (Literal["auto"] | int, "auto", "auto"),
        (Literal["auto"] | int, 5, 5),
        (Annotated[int, msgspec.Meta(ge=1)], 1, 1),
        (Path, "a/../b", Path("/base/b")),
        (Path, "~", Path.home()),
        (Outer, None, Outer()),
        (Outer, {"by_name": {"a": {"size": 2}, "b": None}}, Outer(by_name={"a": Inner(size=2), "b": Inner()})),
    ],
)
def test_a_value_of_the_right_shape_is_read(type_: Any, value: Any, expected: Any) -> None:
    result = value_of(type_, value)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("type_", "value", "told"),
    [
        (int, True, "at: must be a whole number, not true"),
        (int, 1.5, "at: must be a whole number, not the number 1.5"),
        (int, 10**100, ""),
        (float, 10**400, "at: must be a finite number"),
        (float, float("nan"), "at: must be a finite number"),
        (float, "1", "at: must be a number, not the text '1'"),
        (float, "x" * 50, f"at: must be a number, not the text '{'x' * 40}'…"),
        (bool, 1, "at: must be true or false, not the number 1"),
        (str, None, "at: must be text, not nothing"),
        (str, 1, "at: must be text, not a number; put it in quotes"),
        (list[int], {"a": 1}, "at: must be a list, not a mapping"),
        (list[int], [1, "x"], "at[1]: must be a whole number, not the text 'x'"),
        (dict[str, int], [1], "at: must be a mapping, not a list"),
        (dict[str, int], {"a": "b"}, "at.a: must be a whole number, not the text 'b'"),
        (dict[Colour, int], {"rde": 1}, "at.rde: must be one of red, blue (did you mean 'red'?)"),
        (Colour, "green", "at: must be one of red, blue, not the text 'green'"),
        (Literal["a", 1], True, "at: must be one of a, 1, not true"),
        (Literal["a"], None, "at: must be one of a, not nothing"),
        (bool | list[str], "x", "at: text is not allowed here"),
        (bool | list[str], [1], "at[0]: must be text, not a number; put it in quotes"),
        (str | Secret, {"evn": "X"}, "at: a secret is given by reference: {env: NAME} or {file: path}"),
        (str | Inner, {"sise": 1}, "at.sise: unknown key (did you mean 'size'?)"),
        (Annotated[int, msgspec.Meta(ge=1, le=5)], 6, "at: must be 5 or less"),
        (Annotated[int, msgspec.Meta(gt=1, lt=5)], 5, "at: must be less than 5"),
        (Annotated[str, msgspec.Meta(pattern="^a")], "b", "at: must match ^a"),
        (Annotated[str, msgspec.Meta(min_length=2)], "b", "at: must have a length of at least 2"),
        (Annotated[list[int], msgspec.Meta(max_length=1)], [1, 2], "at: must have a length of at most 1"),
        (Annotated[int, msgspec.Meta(ge=1)], "x", "at: must be a whole number, not the text 'x'"),
        (Path, "", "at: must be a path"),
        (complex, 1, "at: the plugin asks for a <class 'complex'>, which a configuration cannot hold"),
    ],
)
def test_a_value_of_the_wrong_shape_is_one_error_with_its_path(type_: Any, value: Any, told: str) -> None:
    if told:
        assert error_of(type_, value) == told
    else:
        assert value_of(type_, value) == value


def test_a_structs_own_objections_keep_their_paths() -> None:
    _, errors = read(Outer, {"with": 2})
    assert errors == ["at.with: too many", "at: not like this"]


def test_the_nearest_key_is_only_offered_when_it_is_near() -> None:
    assert nearest("timout", ["timeout", "weight"]) == " (did you mean 'timeout'?)"
    assert nearest("zzz", ["timeout", "weight"]) == ""


# Secrets


def test_a_secret_comes_from_the_environment_or_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "from the environment")
    (tmp_path / "key").write_text("from a file\n")
    for reference, expected in (({"env": "KEY"}, "from the environment"), ({"file": "key"}, "from a file")):
        secret, _ = read(Secret, reference, tmp_path)
        assert secret.reveal() == expected
        assert expected not in f"{secret} {secret!r} {[secret]}"
        assert expected not in repr(Outer(secret=secret))


def test_a_secret_cannot_leave_by_accident() -> None:
    secret = Secret("value", source="env:KEY")
    with pytest.raises(GatewayError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps({"x": secret})
    with pytest.raises(TypeError):
        msgspec.json.encode({"x": secret})
    with pytest.raises(GatewayError):
        copy.deepcopy(secret)


@pytest.mark.parametrize(
    "reference",
    [
        "the-value", 5, None, ["the-value"], {}, {"value": "the-value"}, {"env": "A", "file": "b"},
        {"env": "the-value"}, {"env": ""}, {"env": 1}, {"env": "A=the-value"}, {"env": {"env": "the-value"}},
        {"file": ""}, {"file": 1}, {"file": "nul\0the-value"}, {"file": "~nobody-there/the-value"},
    ],
)  # fmt: skip
def test_a_reference_that_is_none_is_an_error_that_does_not_repeat_it(reference: Any) -> None:
    assert "the-value" not in error_of(Secret, reference)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null"])
def test_a_secret_file_that_is_a_device_is_refused(name: str) -> None:
    assert error_of(Secret, {"file": name}) == f"at.file: {name} is not a regular file"


def test_a_secret_file_that_nobody_writes_to_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    walker = Walker(tmp_path)
    assert walker.read(Secret, {"file": "pipe"}, "at") is FAULT
    assert [str(error) for error in walker.errors] == ["at.file: pipe is not a regular file"]


def test_a_secret_file_larger_than_a_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * (64 * 1024 + 1))
    walker = Walker(tmp_path)
    assert walker.read(Secret, {"file": "large"}, "at") is FAULT
    assert [str(error) for error in walker.errors] == ["at.file: large is larger than a secret can be"]
