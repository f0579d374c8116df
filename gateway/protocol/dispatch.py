"""Frames in, answers out: who may call what, in which order, and the one place where exceptions become errors.

Above this stands a transport, which has bytes and a session; below it the service, which has typed parameters and a
call. A request passes, in this order (spec sections 12 and 13): parsed, authorised (the transport has done that),
initialised (``-32001``), known (``-32004``), offered (``-32003``), decoded (``-32602``), handled. Everything up to the
handler happens without waiting, so frames take effect in the order in which they came.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from gateway import _json
from gateway.caller import Caller
from gateway.errors import BackendUnavailable, CallerError, Cancelled, Code, InternalError, RcpError, Unsupported
from gateway.model import (
    Capabilities,
    InitializeRequest,
    InitializeResult,
    Message,
    PeerInfo,
    VendorRequest,
    capabilities_to_wire,
)
from gateway.protocol import envelope
from gateway.protocol.call import LEVELS, Notifier, RequestCall, progress_token
from gateway.protocol.envelope import Batch, Ignored, Malformed, Member, Notification, Request
from gateway.protocol.limits import Limits
from gateway.protocol.methods import METHODS, decode, meta_of_params, offered
from gateway.protocol.session import Running, Session, State
from gateway.protocol.validate import MAX_INTEGER
from gateway.spi.call import ClientCall

__all__ = ["VENDOR", "Dispatcher", "Emit", "Handler", "Limits", "Observe", "Server", "Snapshot"]

VERSION = 1
"""The highest protocol version we speak."""

Handler = Callable[[Any, ClientCall], Awaitable[Any]]
"""Gets what ``methods.decode`` made of the parameters, returns a :class:`Message` or a plain object."""

VENDOR = "x-"
"""The handler of this name gets every vendor method that has none of its own, as a :class:`VendorRequest`."""

Emit = Callable[[bytes], None]

Observe = Callable[[str, int, float], None]
"""Told of every answered request: the method (``"unknown"`` if it is none of ours), the error's code or 0, seconds."""


class Snapshot(Protocol):
    """What a caller was told we offer. More may be in it; that is between the service and itself."""

    @property
    def capabilities(self) -> Capabilities: ...


class Server(Protocol):
    """What is served."""

    info: PeerInfo

    @property
    def handlers(self) -> Mapping[str, Handler]: ...

    def snapshot(self, caller: Caller) -> Snapshot: ...

    def conformance(self, snapshot: Any) -> str:
        """The level that is declared to whom that snapshot was given (section 14)."""


class _Work(msgspec.Struct, frozen=True):
    """An admitted call: all that is left is to run it."""

    request: Request
    handler: Handler
    params: Any
    call: RequestCall
    notifier: Notifier
    started: float


class Dispatcher:
    """Answers frames. One for all transports and sessions; bound to the event loop it is used on."""

    def __init__(
        self,
        server: Server,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
        logger: logging.Logger | None = None,
        observe: Observe | None = None,
    ) -> None:
        self._server = server
        self._limits = limits
        self._clock = clock
        self._logger = logger or logging.getLogger(__name__)
        self._observe = observe
        self._running: set[Running] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    async def answer(
        self, frame: bytes, session: Session, *, emit: Emit | None = None, path_method: str | None = None
    ) -> bytes | None:
        """The encoded answer to one frame, single or batch; ``None`` where nothing is answered.

        ``emit`` gets encoded notification frames before this returns; it must not wait, and may drop what a slow
        client does not take. Without it no notification is made. ``path_method`` is the method named in an HTTP path,
        ``None`` or ``""`` if it names none. Raises nothing but ``asyncio.CancelledError``, when cancelled from
        outside; the handlers it runs are cancelled then.
        """
        if session.state is State.CLOSED:
            return None
        parsed = envelope.parse(frame, self._limits)
        if isinstance(parsed, Batch):
            return await self._batch(parsed, session, emit, path_method)
        begun = await self._begin(parsed, session, emit, path_method)
        return await self._run(begun, session) if isinstance(begun, _Work) else begun

    async def close(self, timeout: float = 10.0) -> None:
        """Refuses new calls (``-32010``, retryable), waits ``timeout`` seconds for running ones, cancels the rest.

        Those are answered with ``-32010`` too. A handler that does not let itself be cancelled is left behind after
        a second.
        """
        self._closing = True
        for seconds in (timeout, 1.0):
            try:
                await asyncio.wait_for(self._idle.wait(), seconds)
            except TimeoutError:
                for running in tuple(self._running):
                    running.cancel(_closing())

    # A frame's members.

    async def _batch(self, batch: Batch, session: Session, emit: Emit | None, path: str | None) -> bytes | None:
        entries: list[bytes | asyncio.Task[bytes]] = []
        async with asyncio.TaskGroup() as group:
            for member in batch.members:
                begun = await self._begin(member, session, emit, path)
                if isinstance(begun, _Work):
                    entries.append(group.create_task(self._run(begun, session)))
                elif begun is not None:
                    entries.append(begun)
        answers = [entry if isinstance(entry, bytes) else entry.result() for entry in entries]
        return envelope.batch_of(answers) if answers else None

    async def _begin(
        self, member: Member, session: Session, emit: Emit | None, path: str | None
    ) -> bytes | _Work | None:
        """The answer, or the work that will make one. Waits only to let earlier frames start before a cancel."""
        match member:
            case Ignored():
                return None
            case Malformed(error, id):
                return self._refused(id, "unknown", error, self._clock())
            case Notification(method, params):
                if method == "notifications/cancel":
                    # The call may be a task that has not had its first turn yet.
                    await asyncio.sleep(0)
                    _cancel(session, params, self._limits)
                return None
            case Request():
                return self._admit(member, session, emit, path)

    def _admit(self, request: Request, session: Session, emit: Emit | None, path: str | None) -> bytes | _Work:
        started = self._clock()
        try:
            if path and path != request.method:
                raise CallerError("the method in the path is not the one in the body", code=Code.INVALID_REQUEST)
            control = _CONTROL.get(request.method)
            if control is None:
                return self._work(request, session, emit, started)
            return self._answered(request, control(self, request, session), started)
        except Exception as error:  # noqa: BLE001 - the boundary; what is no RcpError is logged there
            return self._refused(request.id, request.method, error, started)

    def _work(self, request: Request, session: Session, emit: Emit | None, started: float) -> _Work:
        if request.method.startswith("notifications/"):
            raise CallerError("a notification has no id", code=Code.INVALID_REQUEST)
        if not session.initialized:
            raise CallerError("initialize first", code=Code.NOT_INITIALIZED)
        snapshot = self._snapshot(session)
        capabilities = snapshot.capabilities
        handlers = self._server.handlers
        handler = handlers.get(request.method)
        shared = handlers.get(VENDOR) if handler is None and request.method not in METHODS else None
        handler = handler or shared
        if request.method not in METHODS and (handler is None or not offered(request.method, capabilities)):
            raise CallerError("no such method", code=Code.METHOD_NOT_FOUND)
        if handler is None or not offered(request.method, capabilities):
            raise Unsupported(f"{request.method} is not offered")
        if self._closing:
            raise _closing()
        params = decode(request.method, request.params)
        meta = meta_of_params(params)
        if shared is not None:
            own = {name: value for name, value in params.items() if name != "_meta"}
            params = VendorRequest(method=request.method, params=own, meta=dict(meta))
        notifier = Notifier(
            emit and self._guarded(emit),
            token=progress_token(meta) if capabilities.streaming else None,
            log_level=_log_level(meta, session.client_log_level) if capabilities.log else None,
            limit=self._limits.notifications_per_call,
        )
        call = RequestCall(session.caller, snapshot, meta, notifier)
        return _Work(request, handler, params, call, notifier, started)

    async def _run(self, work: _Work, session: Session) -> bytes:
        request = work.request
        try:
            return self._answered(request, await self._handle(work, session), work.started)
        except Exception as error:  # noqa: BLE001 - the boundary; what is no RcpError is logged there
            return self._refused(request.id, request.method, error, work.started)

    async def _handle(self, work: _Work, session: Session) -> Any:
        key = envelope.id_key(work.request.id, self._limits.id_bytes)
        running = Running()
        self._running.add(running)
        self._idle.clear()
        session.start(key, running)
        try:
            with running:
                limits = self._limits
                slot = await session.slot(limits.concurrent_per_session, limits.queued_per_session)
                try:
                    return await work.handler(work.params, work.call)
                finally:
                    slot.release()
        finally:
            work.notifier.close()
            session.finish(key, running)
            self._running.discard(running)
            if not self._running:
                self._idle.set()

    # The methods of the session itself. They answer at once, whatever else is going on.

    def _initialize(self, request: Request, session: Session) -> Message:
        session.may_initialize()
        if self._closing:
            raise _closing()
        params: InitializeRequest = decode(request.method, request.params)
        wanted = VERSION if params.protocol_version is None else params.protocol_version
        if wanted < 1:
            told = "no protocol version in common: the client asks for {}, this server speaks {}"
            told = told.format(max(wanted, -MAX_INTEGER), VERSION)
            raise CallerError(told, code=Code.VERSION_UNSUPPORTED)
        snapshot = self._snapshot(session)
        asked = (params.capabilities or {}).get("log")
        agreed: dict[str, Any] = {
            "version": min(wanted, VERSION),
            "client": params.client,
            "request_id": envelope.id_key(request.id, self._limits.id_bytes),
            "log_level": _log_level(_meta(request.params), "info") if asked not in (None, False) else None,
        }
        session.initialize(snapshot, **agreed)
        token = None
        if session.issue is not None:
            kept = session
            if session.kind != "strict":
                # The token opens a session of its own: the one at hand is nobody's.
                kept = Session("strict", session.caller)
                kept.initialize(snapshot, **agreed)
            token = session.issue(kept)
        return self._hello(session, snapshot, token)

    def _info(self, request: Request, session: Session) -> Message:
        decode(request.method, request.params)
        return self._hello(session, self._snapshot(session), None)

    def _ping(self, request: Request, session: Session) -> dict[str, Any]:
        decode(request.method, request.params)
        nonce = _json.decode(request.params, _Nonce).nonce if request.params.startswith(b"{") else b""
        try:
            envelope.id_key(bytes(nonce), len(nonce))
        except ValueError:
            return {}
        return {"nonce": nonce}

    def _shutdown(self, request: Request, session: Session) -> dict[str, Any]:
        decode(request.method, request.params)
        session.shutdown()
        return {}

    def _hello(self, session: Session, snapshot: Snapshot, token: str | None) -> Message:
        meta = {"conformance": self._server.conformance(snapshot)}
        if token is not None:
            meta["session"] = token
        return InitializeResult(
            protocol_version=session.protocol_version,
            server=self._server.info,
            capabilities=capabilities_to_wire(snapshot.capabilities),
            meta=meta,
        )

    def _snapshot(self, session: Session) -> Snapshot:
        kept: Snapshot | None = session.snapshot
        return self._server.snapshot(session.caller) if kept is None else kept

    # Answers.

    def _answered(self, request: Request, result: Any, started: float) -> bytes:
        """The answer that holds the result. Raises whatever is wrong with the result."""
        answer = envelope.success(request.id, _encoded(result))
        self._observed(request.method, 0, started)
        return answer

    def _refused(self, id: bytes, method: str, error: Exception, started: float) -> bytes:
        if not isinstance(error, RcpError):
            self._logger.error("unexpected failure in %s", _label(method), exc_info=error)
            error = InternalError()
        try:
            encoded = _json.encode(error.to_wire())
        except Exception:
            self._logger.exception("an error could not be written")
            error = InternalError()
            encoded = _json.encode(error.to_wire())
        self._observed(method, error.code, started)
        return envelope.failure(id, encoded)

    def _guarded(self, emit: Emit) -> Emit:
        """The same, for a transport that fails: a notification is never worth a request."""

        def guarded(frame: bytes) -> None:
            try:
                emit(frame)
            except Exception:
                self._logger.exception("a notification could not be sent")

        return guarded

    def _observed(self, method: str, code: int, started: float) -> None:
        if self._observe is None:
            return
        try:
            self._observe(_label(method), code, self._clock() - started)
        except Exception:
            self._logger.exception("the observer failed")


_CONTROL: Mapping[str, Callable[[Dispatcher, Request, Session], Any]] = {
    "initialize": Dispatcher._initialize,
    "info": Dispatcher._info,
    "ping": Dispatcher._ping,
    "shutdown": Dispatcher._shutdown,
}


class _Nonce(msgspec.Struct):
    nonce: _json.Raw = _json.Raw(b"")


class _MetaOnly(msgspec.Struct):
    meta: Any = msgspec.field(default=None, name="_meta")


class _CancelParams(msgspec.Struct):
    id: _json.Raw = _json.Raw(b"")


def _meta(params: bytes) -> Mapping[str, Any]:
    try:
        meta = _json.decode(params, _MetaOnly).meta
    except ValueError:
        return {}
    return meta if isinstance(meta, Mapping) else {}


def _cancel(session: Session, params: bytes, limits: Limits) -> None:
    """Section 7.14: whatever is wrong with it, a cancel is never answered."""
    try:
        key = envelope.id_key(bytes(_json.decode(params, _CancelParams).id), limits.id_bytes)
    except ValueError:
        return
    session.cancel(key, Cancelled("cancelled by the client"))


def _log_level(meta: Mapping[str, Any], default: str | None) -> str | None:
    level = meta.get("logLevel")
    return level if isinstance(level, str) and level in LEVELS else default


def _closing() -> RcpError:
    return BackendUnavailable("the server is shutting down")


def _label(method: str) -> str:
    return method if method in METHODS else "unknown"


def _encoded(result: Any) -> bytes:
    encoded = _json.encode(result)
    if not encoded.startswith(b"{"):
        raise TypeError("a result must be an object")
    if b"null" in encoded and not _json.finite(msgspec.to_builtins(result, enc_hook=_opaque)):
        raise ValueError("a result holds NaN or an infinity")
    return envelope.one_line(encoded)


def _opaque(sealed: Any) -> None:
    """Parts that are encoded already were looked at when they were sealed."""
    if not isinstance(sealed, _json.Raw):
        raise TypeError(f"{type(sealed).__name__} cannot be sent")
