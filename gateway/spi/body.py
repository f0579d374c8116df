"""A JSON body read as services built on FastAPI read theirs, for facades that stand in for one.

Every fault is found, not only the first, and told in the shape that clients of such services know::

    {"detail": [{"type": "missing", "loc": ["body", "query"], "msg": "Field required", "input": null}]}

Unknown members are ignored, a whole number may be written ``5.0`` or ``"5"`` and a truth ``"yes"`` or ``1``, as there.
``input`` repeats numbers and booleans only: what else a client sent may be a key, or larger than an answer should be.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any, Final

from gateway import _json

__all__ = ["Body", "Faults", "read_body"]

_SHOWN_FAULTS = 100
_SHOWN_NAME = 120

_TRUTHS: Final[Mapping[Any, bool]] = {
    **dict.fromkeys((True, 1, "1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys((False, 0, "0", "false", "f", "no", "n", "off"), False),
}
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,30}(?:\.0{1,30})?")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,4})?")


class Faults(Exception):
    """The body cannot be used; ``rows`` say where and why."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(f"{len(rows)} faults in the body")
        self.rows = rows

    def encoded(self) -> bytes:
        """The body of the 422 answer."""
        return _json.dumps({"detail": self.rows[:_SHOWN_FAULTS]})

    @classmethod
    def one(cls, type: str, message: str, *loc: str | int, input: Any = None) -> Faults:
        return cls([_row(type, message, loc, input)])


class Body:
    """One object of a body. A member that cannot be read is noted and read as its default; see :meth:`done`."""

    __slots__ = ("_loc", "_values", "rows")

    def __init__(
        self,
        values: Mapping[str, Any],
        loc: tuple[str | int, ...] = ("body",),
        rows: list[dict[str, Any]] | None = None,
    ) -> None:
        self._values = values
        self._loc = loc
        self.rows: list[dict[str, Any]] = [] if rows is None else rows

    def done(self) -> None:
        """Raises :class:`Faults` if there were any, also in objects inside this one."""
        if self.rows:
            raise Faults(self.rows)

    def fault(self, type: str, message: str, *loc: str | int, input: Any = None) -> None:
        self.rows.append(_row(type, message, (*self._loc, *loc), input))
        if len(self.rows) >= _SHOWN_FAULTS:
            raise Faults(self.rows)  # no more are shown, so no more are looked for

    def inside(self, values: Mapping[str, Any], *loc: str | int) -> Body:
        """An object further down, whose faults count here."""
        return Body(values, (*self._loc, *loc), self.rows)

    def value(self, name: str) -> Any:
        return self._values.get(name)

    def required_text(self, name: str) -> str:
        if name not in self._values:
            self.fault("missing", "Field required", name)
            return ""
        return self._text(name, "", nullable=False) or ""

    def text(self, name: str, default: str | None = None) -> str | None:
        """Text; null only where the default is ``None``."""
        return self._text(name, default, nullable=default is None)

    def choice(self, name: str, allowed: Collection[str], default: str | None = None) -> str | None:
        text = self.text(name, default)
        if text is not None and text not in allowed:
            self.fault("literal_error", f"Input should be {_listed(allowed)}", name)
            return default
        return text

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name, default)
        known = value.lower() if isinstance(value, str) else value
        if isinstance(known, str | int | float) and known in _TRUTHS:
            return _TRUTHS[known]
        if isinstance(value, str | int) or (isinstance(value, float) and value.is_integer()):
            told = "Input should be a valid boolean, unable to interpret input"
            self.fault("bool_parsing", told, name, input=value)
        else:
            self.fault("bool_type", "Input should be a valid boolean", name, input=value)
        return default

    def whole(self, name: str, default: int | None = None, *, least: int | None = None) -> int | None:
        """A whole number; null only where the default is ``None``."""
        value = self._values.get(name, default)
        if value is None and default is None:
            return None
        if isinstance(value, str):
            if not _WHOLE.fullmatch(value.strip()):
                told = "Input should be a valid integer, unable to parse string as an integer"
                self.fault("int_parsing", told, name)
                return default
            value = int(value.strip().partition(".")[0])
        if isinstance(value, float) and not value.is_integer():
            told = "Input should be a valid integer, got a number with a fractional part"
            self.fault("int_from_float", told, name, input=value)
            return default
        if not isinstance(value, int | float):
            self.fault("int_type", "Input should be a valid integer", name, input=value)
            return default
        value = int(value)
        if least is not None and value < least:
            self.fault("greater_than_equal", f"Input should be greater than or equal to {least}", name, input=value)
            return default
        return value

    def number(self, name: str, *, least: float | None = None, most: float | None = None) -> float | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            told = "Input should be a valid number, unable to parse string as a number"
            number = float(value.strip()) if _NUMBER.fullmatch(value.strip()) else float("inf")
            if not isfinite(number):
                self.fault("float_parsing", told, name)
                return None
            value = number
        if not isinstance(value, int | float):
            self.fault("float_type", "Input should be a valid number", name, input=value)
            return None
        value = float(value) if isinstance(value, bool) else value
        if least is not None and value < least:
            self.fault("greater_than_equal", f"Input should be greater than or equal to {least:g}", name, input=value)
            return None
        if most is not None and value > most:
            self.fault("less_than_equal", f"Input should be less than or equal to {most:g}", name, input=value)
            return None
        return value

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        value = self._values.get(name)
        if value is None or isinstance(value, Mapping):
            return value
        self.fault("dict_type", "Input should be a valid dictionary", name, input=value)
        return None

    def _text(self, name: str, default: str | None, *, nullable: bool) -> str | None:
        value = self._values.get(name, default)
        if isinstance(value, str) or (value is None and nullable):
            return value
        self.fault("string_type", "Input should be a valid string", name, input=value)
        return default


def read_body(data: bytes) -> Body:
    """The body's object. Raises :class:`Faults` if it is none."""
    try:
        value = _json.loads(data)
    except ValueError:
        raise Faults.one("json_invalid", "JSON decode error", "body") from None
    if not isinstance(value, dict):
        raise Faults.one("model_attributes_type", "Input should be a valid dictionary", "body", input=value)
    return Body(value)


def _row(type: str, message: str, loc: tuple[str | int, ...], input: Any) -> dict[str, Any]:
    shown = input if isinstance(input, bool | int | float) else None
    place = [part if isinstance(part, int) else part[:_SHOWN_NAME] for part in loc]
    return {"type": type, "loc": place, "msg": message, "input": shown}


def _listed(allowed: Collection[str]) -> str:
    names = [f"'{name}'" for name in allowed]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
