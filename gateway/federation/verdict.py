"""From the outcomes of all legs to success or one error (docs/federation.md, RCP section 16.2)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import BackendUnavailable, Code, RcpError, Timeout, Unsupported, UpstreamError
from gateway.federation.capability import Snapshot
from gateway.federation.loss import Failure, Loss, Reason
from gateway.federation.recall import Outcome, Reply

__all__ = ["judge", "refusal", "surfaced"]

# What an engine says with any other code is about our request, our key or our session there, not about the client's.
_SURFACED = frozenset({Code.BACKEND_UNAVAILABLE, Code.RATE_LIMITED, Code.TIMEOUT, Code.INTERNAL_ERROR})


def surfaced(engine: str, error: RcpError) -> RcpError:
    """An engine's error as the gateway's own answer: its code where it speaks of the engine, else ``-32010``."""
    data = {**error.data, "engine": engine}
    if error.code in _SURFACED:
        return UpstreamError(f"engine {engine}: {error.message}", code=error.code, retryable=error.retryable, data=data)
    data.setdefault("upstreamCode", error.code)
    return UpstreamError(f"engine {engine}: {error.message}", retryable=False, data=data)


def judge(snapshot: Snapshot, reasons: Sequence[Reason], outcomes: Sequence[Outcome]) -> list[Loss]:
    """The losses of a successful answer. Raises the error of one that is not."""
    required = {view.id for view in snapshot.views if view.member.settings.required}
    for reason in reasons:
        if reason.engine in required and reason.state in ("unable", "failed"):
            raise refusal([reason]) if reason.state == "unable" else surfaced(reason.engine, _error(reason))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    for failure in _known_first(failures):
        if failure.engine in required:
            raise surfaced(failure.engine, failure.error)
    answered = any(isinstance(outcome, Reply) for outcome in outcomes)
    if not answered and not any(reason.state == "proved-empty" for reason in reasons):
        _raise_if_nobody_answered(reasons, failures)
    losses = [reason.loss() for reason in reasons]
    for outcome in outcomes:
        losses += outcome.losses if isinstance(outcome, Reply) else [outcome.loss()]
    return losses


def _known_first(failures: Sequence[Failure]) -> list[Failure]:
    """Real failures before those that were only not awaited because of them."""
    return sorted(failures, key=lambda failure: failure.error.message.startswith("not awaited"))


def _error(reason: Reason) -> RcpError:
    return reason.error or BackendUnavailable(reason.message)


def _raise_if_nobody_answered(reasons: Sequence[Reason], failures: Sequence[Failure]) -> None:
    down = [reason for reason in reasons if reason.state == "failed"]
    unable = [reason for reason in reasons if reason.state == "unable"]
    if failures or down:
        errors = {failure.engine: failure.error for failure in failures}
        errors.update({reason.engine: _error(reason) for reason in down})
        raise _all_failed(errors, only_late=not down and all(one.timed_out and one.client_deadline for one in failures))
    if unable:
        raise refusal(unable)


def _all_failed(errors: dict[str, RcpError], *, only_late: bool) -> RcpError:
    waits = [error.data["retryAfterMs"] for error in errors.values() if isinstance(error.data.get("retryAfterMs"), int)]
    data: dict[str, object] = {"engines": {id: {"code": e.code, "message": e.message} for id, e in errors.items()}}
    if waits:
        data["retryAfterMs"] = min(waits)
    if only_late:
        return Timeout("no engine answered before the deadline", data=data)
    retryable = any(error.retryable for error in errors.values())
    return BackendUnavailable("every engine failed", retryable=retryable, data=data)


def refusal(reasons: Sequence[Reason]) -> RcpError:
    """``-32005``: engines could not be asked as the request wants it."""
    first = reasons[0]
    data: dict[str, object] = {
        "option": first.option or "filter",
        "reasons": {reason.engine: reason.message for reason in reasons},
    }
    if first.field is not None:
        data["field"] = first.field
    return Unsupported("no engine can serve this request", code=Code.OPTION_UNSUPPORTED, data=data)
