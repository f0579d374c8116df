"""YAML 1.2 text into plain values, and the line that each of them stands on.

Scalars follow the core schema of YAML 1.2 and nothing else: ``yes``, ``12:30`` and ``2024-01-01`` are text, ``010`` is
ten. What YAML can do beyond mappings, lists and scalars (tags, merge keys, values that contain themselves) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import ConfigError, ConfigErrors

__all__ = ["join", "line_of", "parse"]

_DEPTH = 64
_DIGITS = 400

_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_STR_TAGS = ("!", "tag:yaml.org,2002:str")
_PLAIN_KEY = re.compile(r"[\w-]{1,80}")


def join(path: str, key: object) -> str:
    """The path of a key below ``path``: ``engines[0].with``; an unusual key is quoted, so that a path is one word."""
    name = str(key)
    if not _PLAIN_KEY.fullmatch(name):
        return f"{path}[{name[:80]!r}]"
    return f"{path}.{name}" if path else name


def line_of(path: str, lines: Mapping[str, int]) -> int | None:
    """Where ``path`` stands, or what it would have stood in: a key that is missing has no line of its own."""
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path)


def parse(text: str) -> tuple[Any, dict[str, int]]:
    """The value of the one document in ``text``, and the line of every path in it.

    Raises :class:`~gateway.errors.ConfigErrors`: all duplicate keys and refused constructs at once, or the one place
    where the text stops being YAML.
    """
    # Imported here: the parser is a tenth of the time `rcp-gateway --version` may take.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    builder = _Builder()
    try:
        value = builder.document(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        fault = ConfigError(f"not YAML: {_first_line(error.problem or error.context)}")
        fault.line = mark.line + 1 if mark else None
        raise ConfigErrors([*builder.errors, fault]) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigErrors([*builder.errors, ConfigError(f"not YAML: {_first_line(error)}")]) from error
    if builder.errors:
        raise ConfigErrors(builder.errors)
    return value, builder.lines


def _first_line(problem: object) -> str:
    return (str(problem).splitlines() or ["?"])[0]


class _Builder:
    """Builds values from the parser's events, which still know what was written and where."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.errors: list[ConfigError] = []
        self._anchors: dict[str, Any] = {}
        self._open: set[str] = set()

    def document(self, events: Iterator[Any]) -> Any:
        value: Any = None
        seen = False
        for event in events:
            match type(event).__name__:
                case "DocumentStartEvent" if seen:
                    self._fault("", event, "the file must hold one document; a second begins here")
                    break
                case "DocumentStartEvent":
                    seen = True
                    value = self._node(next(events), events, "", 0)
        return value

    def _fault(self, path: str, event: Any, message: str) -> None:
        error = ConfigError(message, path=path)
        error.line = event.start_mark.line + 1
        self.errors.append(error)

    def _node(self, event: Any, events: Iterator[Any], path: str, depth: int) -> Any:
        self.lines.setdefault(path, event.start_mark.line + 1)
        if depth > _DEPTH:
            raise ValueError(f"nested deeper than {_DEPTH} levels")
        name = type(event).__name__
        if name == "AliasEvent":
            return self._alias(event, path)
        if event.anchor:
            self._open.add(event.anchor)
        if name == "ScalarEvent":
            value = self._scalar(event, path)
        elif name == "SequenceStartEvent":
            self._no_tag(event, path, "seq")
            value = self._list(events, path, depth)
        else:
            self._no_tag(event, path, "map")
            value = self._mapping(events, path, depth)
        if event.anchor:
            self._open.discard(event.anchor)
            self._anchors[event.anchor] = value
        return value

    def _alias(self, event: Any, path: str) -> Any:
        if event.anchor in self._open:
            self._fault(path, event, f"*{event.anchor} stands inside what it refers to")
        elif event.anchor not in self._anchors:
            self._fault(path, event, f"there is no anchor &{event.anchor} above")
        return self._anchors.get(event.anchor)

    def _list(self, events: Iterator[Any], path: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while type(event := next(events)).__name__ != "SequenceEndEvent":
            items.append(self._node(event, events, f"{path}[{len(items)}]", depth + 1))
        return items

    def _mapping(self, events: Iterator[Any], path: str, depth: int) -> dict[Any, Any]:
        pairs: dict[Any, Any] = {}
        while type(event := next(events)).__name__ != "MappingEndEvent":
            written = event.value if type(event).__name__ == "ScalarEvent" else "?"
            inner = join(path, written)
            key = self._node(event, events, inner, depth + 1)
            value = self._node(next(events), events, inner, depth + 1)
            if isinstance(key, list | dict):
                self._fault(path, event, "a key must be text, not a list or a mapping")
            elif written == "<<" and not event.style:
                self._fault(inner, event, "merge keys are not part of YAML 1.2; write the keys out")
            elif key in pairs:
                self._fault(inner, event, "this key stands here twice")
            else:
                pairs[key] = value
        return pairs

    def _no_tag(self, event: Any, path: str, usual: str) -> None:
        if event.tag not in (None, "!", f"tag:yaml.org,2002:{usual}"):
            self._fault(path, event, "tags are not used in a configuration")

    def _scalar(self, event: Any, path: str) -> Any:
        text: str = event.value
        if _SURROGATE.search(text):  # JSON writes letters beyond 16 bits as two escapes
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if event.tag is not None and event.tag not in _STR_TAGS:
            self._fault(path, event, "tags are not used in a configuration")
            return None
        if event.style or event.tag is not None:
            return text
        if _NULL.fullmatch(text):
            return None
        if truth := _BOOL.fullmatch(text):
            return truth[1] is not None
        number = _number(text)
        if number is None:
            return text
        if len(text) > _DIGITS:
            self._fault(path, event, "a number of more digits than anybody needs")
            return None
        return number(text)


def _number(text: str) -> Any:
    """What reads the number, ``None`` if the text is not one."""
    if _INT.fullmatch(text):
        return int
    if _BASED.fullmatch(text):
        return lambda based: int(based, 0)
    if _FLOAT.fullmatch(text):
        return float
    if _SPECIAL.fullmatch(text):
        return lambda special: float(special.replace(".", ""))
    return None
