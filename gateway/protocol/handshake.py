"""How a connection to an RCP server begins, without I/O: ``initialize`` and its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from gateway import _json
from gateway.errors import BackendUnavailable, Code, RcpError
from gateway.protocol.peer import NAME_LIMIT, Answer, failure, printable

__all__ = ["PROTOCOL_VERSION", "Handshake", "State"]

PROTOCOL_VERSION = 1
"""The one version spoken here, highest and lowest (RCP section 7.1)."""

_TOKEN = re.compile(r"[\x21-\x7e]{1,1024}")


class State(Enum):
    FRESH = "fresh"
    INITIALIZING = "initializing"
    ASKING = "asking"
    READY = "ready"


class _Outcome(Enum):
    ACCEPTED = "accepted"
    ALREADY = "already initialised"
    FAILED = "failed"


# -32600 on initialize means that somebody else holds the one session of an SDK server; its `info` still tells all that
# is needed (DECISIONS D1b). A failed handshake starts again from the beginning.
_NEXT = {
    (State.INITIALIZING, _Outcome.ACCEPTED): State.READY,
    (State.INITIALIZING, _Outcome.ALREADY): State.ASKING,
    (State.INITIALIZING, _Outcome.FAILED): State.FRESH,
    (State.ASKING, _Outcome.ACCEPTED): State.READY,
    (State.ASKING, _Outcome.ALREADY): State.FRESH,
    (State.ASKING, _Outcome.FAILED): State.FRESH,
}


class Handshake:
    """``initialize`` and its answer (RCP sections 7.1 and 13): nothing else is sent before it is through.

    ``step`` says what to send next; ``advance`` takes the answer. ``generation`` counts completed handshakes, so that
    many calls that learn at once that the session is gone start only one new handshake.
    """

    def __init__(self, *, name: str, version: str) -> None:
        self.state = State.FRESH
        self.generation = 0
        self.capabilities: Mapping[str, Any] = {}
        self.server = ""
        self.session: str | None = None
        self._client = {"name": name, "version": version}

    def step(self) -> tuple[str, dict[str, Any]] | None:
        """Method and parameters of the next request, ``None`` once the peer is ready."""
        match self.state:
            case State.READY:
                return None
            case State.ASKING:
                return "info", {}
            case _:
                self.state = State.INITIALIZING
                client: dict[str, Any] = {"streaming": {}, "log": {}}
                return "initialize", {
                    "protocolVersion": PROTOCOL_VERSION,
                    "client": self._client,
                    "capabilities": client,
                    # Each call asks for as much as its client wants to hear.
                    "_meta": {"logLevel": "error"},
                }

    def advance(self, answer: Answer) -> None:
        """Takes the answer to what :meth:`step` said. Raises :class:`RcpError` if there is no way on."""
        if answer.error is not None:
            already = answer.error.code == Code.INVALID_REQUEST and self.state is State.INITIALIZING
            self.state = _NEXT[self.state, _Outcome.ALREADY if already else _Outcome.FAILED]
            if already:
                return
            raise failure(answer.error)
        try:
            self._accept(_json.decode(answer.object(), dict[str, Any]))
        except (RcpError, ValueError, RecursionError) as error:
            self.state = _NEXT[self.state, _Outcome.FAILED]
            if isinstance(error, RcpError):
                raise
            raise BackendUnavailable("the engine's handshake cannot be read") from error
        self.state = _NEXT[self.state, _Outcome.ACCEPTED]
        self.generation += 1

    def lapse(self, generation: int) -> None:
        """The session of that generation is gone (``-32001``). A newer one is left alone."""
        if self.state is State.READY and generation == self.generation:
            self.reset()

    def reset(self) -> None:
        """Starts over: the connection is a new one."""
        self.state = State.FRESH
        self.session = None

    def _accept(self, result: Mapping[str, Any]) -> None:
        version = _json.finite_float(result.get("protocolVersion", PROTOCOL_VERSION))
        if version is None or not version.is_integer() or version < PROTOCOL_VERSION:
            said = result.get("protocolVersion")
            shown = printable(str(said), NAME_LIMIT) if isinstance(said, str | int | float) else "unknown"
            told = f"the engine speaks version {shown} of RCP, the gateway version {PROTOCOL_VERSION}"
            raise BackendUnavailable(told, retryable=False)
        capabilities, server, meta = result.get("capabilities"), result.get("server"), result.get("_meta")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        self.server = printable(server.get("name"), NAME_LIMIT) if isinstance(server, dict) else ""
        if self.state is State.INITIALIZING:
            token = meta.get("session") if isinstance(meta, dict) else None
            # It becomes a header: what could break out of one is not a token.
            self.session = token if isinstance(token, str) and _TOKEN.fullmatch(token) else None
