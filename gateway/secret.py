"""Secrets: named in the configuration, resolved when it is loaded, never printed."""

from __future__ import annotations

from gateway.errors import GatewayError

__all__ = ["Secret"]

_MASK = "***"


class Secret:
    """A value that must not be shown.

    ``str``, ``repr`` and formatting give a mask; only :meth:`reveal` gives the value. It is not JSON-serialisable and
    not picklable, so that it cannot slip into a log, a cache or an answer.
    """

    __slots__ = ("_value", "source")

    def __init__(self, value: str, *, source: str = "") -> None:
        self._value = value
        self.source = source

    def reveal(self) -> str:
        """The value itself, to be put into a header and nowhere else."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({self.source or _MASK})"

    def __str__(self) -> str:
        return _MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(("Secret", self._value))

    def __reduce__(self) -> str:
        raise GatewayError("a secret cannot be pickled")
