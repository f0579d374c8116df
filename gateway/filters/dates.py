"""Instants: how dates are read, compared and written.

A date is a point in time with a precision of one microsecond, whatever its spelling. Comparing spellings instead is
the classic fault of filter translators: ``2024-01-01T01:00:00+01:00`` and ``2024-01-01T00:00:00Z`` are one instant.

What is read (RFC 3339 section 5.6, and what our page ``docs/filters.md`` adds):

- ``date "T" time offset``; ``t``, a blank, and ``z`` are accepted; the offset may be left out and is then UTC;
- a date alone is midnight UTC;
- digits beyond the microsecond are cut off (which is the floor, also before 1970);
- a leap second (``:60``) is refused: no engine agrees with another on where it lies;
- numbers are milliseconds since 1970-01-01T00:00:00Z.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import floor, isfinite

__all__ = ["Instant", "literal_instant", "read_rfc3339", "stored_micros"]

_MICROS = 1_000_000
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = (date.min.toordinal() - _EPOCH_DAY) * 86_400 * _MICROS
_LAST = (date.max.toordinal() - _EPOCH_DAY + 1) * 86_400 * _MICROS - 1

# [0-9], not \d, which takes every Unicode digit; fullmatch, because "$" lets a final newline through.
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))?)?"
)


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """A point in time: ``micros`` is microseconds since 1970-01-01T00:00:00Z, negative before it."""

    micros: int

    def rfc3339(self) -> str:
        """The instant in UTC, ``…Z``, with six fractional digits where there are any.

        Every instant that the parser makes lies in the years 1 to 9999, which this can spell.
        """
        moment = _EPOCH + timedelta(microseconds=self.micros)
        return moment.replace(tzinfo=None).isoformat() + "Z"

    def epoch_ms(self) -> int | None:
        """Whole milliseconds since 1970; ``None`` if the instant is not a whole number of them."""
        whole, rest = divmod(self.micros, 1000)
        return None if rest else whole


def read_rfc3339(text: str) -> int | None:
    """Microseconds since 1970 of an RFC 3339 text; ``None`` if it is not one."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, off_hour, off_minute = found.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    if hour is None:
        return days * 86_400 * _MICROS
    # Arithmetic on integers, not on datetime: 0001-01-01T00:00:00+01:00 lies outside what datetime can hold.
    hours, minutes, seconds = int(hour), int(minute), int(second)
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    offset = 0
    if sign is not None:
        off_hours, off_minutes = int(off_hour), int(off_minute)
        if off_hours > 23 or off_minutes > 59:
            return None
        offset = (off_hours * 60 + off_minutes) * (-60 if sign == "-" else 60)
    micros = int((fraction or "")[:6].ljust(6, "0"))
    return (days * 86_400 + hours * 3600 + minutes * 60 + seconds - offset) * _MICROS + micros


def stored_micros(value: object) -> int | None:
    """Microseconds since 1970 of one stored value; ``None`` if it is not a readable date, and then nothing matches it.

    Floats are read too: stores that know only doubles give epoch milliseconds back as such.
    """
    if isinstance(value, str):
        return read_rfc3339(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value * 1000
    if isinstance(value, float) and isfinite(value):
        return floor(Fraction(value) * 1000)
    return None


def literal_instant(value: object) -> Instant | None:
    """The instant that a filter literal means: RFC 3339 text or whole epoch milliseconds; ``None`` if it is neither.

    Instants outside the years 1 to 9999 are not literals, because they could not be sent on as RFC 3339.
    """
    if isinstance(value, float) and not (isfinite(value) and value.is_integer()):
        return None
    micros = stored_micros(value)
    return None if micros is None or not _FIRST <= micros <= _LAST else Instant(micros)
