"""From the outcomes of all legs to success or one error (docs/federation.md, RCP section 16.2)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gateway.errors import BackendUnavailable, Code, RcpError, Timeout, Unsupported, UpstreamError
from gateway.federation.capability import Snapshot
from gateway.federation.loss import Failure, Loss, Reason, said
from gateway.federation.plan import RetrievePlan
from gateway.federation.reading import Reply
from gateway.federation.recall import Outcome

__all__ = ["admit", "judge", "raise_if_nobody_answered", "refusal", "surfaced"]

# What an engine says with any other code is about our request, our key or our session there, not about the client's.
_SURFACED = frozenset({Code.BACKEND_UNAVAILABLE, Code.RATE_LIMITED, Code.TIMEOUT, Code.INTERNAL_ERROR})
_DATA_MEMBERS = 16
_DATA_NAME = 64


def surfaced(engine: str, error: RcpError, also: Collection[Code] = ()) -> RcpError:
    """An engine's error as the gateway's own answer: its code where it speaks of the engine, else ``-32010``.

    ``also`` are further codes that mean the same to the client as to the engine.
    """
    data = {**_data(error), "engine": engine}
    message = f"engine {engine}: {said(error.message)}"
    code = next((one for one in (error.code, error.data.get("upstreamCode")) if one in also), error.code)
    if code in _SURFACED or code in also:
        return UpstreamError(message, code=code, retryable=error.retryable, data={**data, "retryable": error.retryable})
    return UpstreamError(message, retryable=False, data={"upstreamCode": error.code, **data, "retryable": False})


def _data(error: RcpError) -> dict[str, Any]:
    """What an engine's error says beyond its message: numbers and short texts, nothing that nests."""
    data: dict[str, Any] = {}
    for name, value in list(error.data.items())[:_DATA_MEMBERS]:
        if isinstance(value, str):
            data[said(name, _DATA_NAME)] = said(value)
        elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            data[said(name, _DATA_NAME)] = value
    wait = retry_after_ms(error)
    data.pop("retryAfterMs", None)
    return data if wait is None else {**data, "retryAfterMs": wait}


def retry_after_ms(error: RcpError) -> int | None:
    """How long the engine asks us to wait, if it says so in a way that can be used."""
    wait = error.data.get("retryAfterMs")
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < 2**53:
        return None
    return math.ceil(wait)


def admit(snapshot: Snapshot, planned: RetrievePlan) -> None:
    """Raises the error of the first required engine that the plan has already lost: nobody need be asked then."""
    required = _required(snapshot, planned)
    for reason in planned.reasons:
        if reason.engine in required and reason.state == "unable":
            raise refusal([reason], f"engine {reason.engine} is required and cannot serve this request")
        if reason.engine in required and reason.state == "failed":
            raise surfaced(reason.engine, _error(reason))


def judge(snapshot: Snapshot, planned: RetrievePlan, outcomes: Sequence[Outcome]) -> list[Loss]:
    """The losses of a successful answer. Raises the error of one that is not.

    ``outcomes`` are those known, in plan order.
    """
    required = _required(snapshot, planned)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    for failure in failures:
        if failure.engine in required:
            raise surfaced(failure.engine, failure.error)
    for outcome in outcomes:
        if isinstance(outcome, Reply) and outcome.version != planned.pinned.get(outcome.leg.id, outcome.version):
            error = BackendUnavailable("it served another index version than the one that is pinned", retryable=False)
            raise surfaced(outcome.leg.id, error)
    answered = any(isinstance(outcome, Reply) for outcome in outcomes)
    if not answered and not any(reason.state == "proved-empty" for reason in planned.reasons):
        raise_if_nobody_answered(planned.reasons, failures)
    losses = [reason.loss() for reason in planned.reasons]
    for outcome in outcomes:
        losses += outcome.losses if isinstance(outcome, Reply) else [outcome.loss()]
    known = {outcome.leg.id if isinstance(outcome, Reply) else outcome.engine for outcome in outcomes}
    losses += [
        Reason(leg.id, "left-out", "engines of a higher priority answered").loss()
        for leg in planned.legs
        if leg.id not in known
    ]
    if not outcomes and not losses:
        losses.append(Loss(kind="note", message="there was no engine to ask"))
    return losses


def _required(snapshot: Snapshot, planned: RetrievePlan) -> set[str]:
    """Engines without which there is no answer. A pinned version is served whole, so there it is all of them."""
    required = {view.id for view in snapshot.views if view.member.settings.required}
    return required | set(planned.pinned)


def _error(reason: Reason) -> RcpError:
    return reason.error or BackendUnavailable(reason.message)


def raise_if_nobody_answered(reasons: Sequence[Reason], failures: Sequence[Failure]) -> None:
    """The error of a call that no engine answered, if one failed or was unable; that all were left out is none."""
    down = [reason for reason in reasons if reason.state == "failed"]
    unable = [reason for reason in reasons if reason.state == "unable"]
    if failures or down:
        errors = {reason.engine: _error(reason) for reason in down}
        errors.update({failure.engine: failure.error for failure in failures})
        raise _all_failed(errors, only_late=not down and all(one.timed_out and one.client_deadline for one in failures))
    if unable:
        raise refusal(unable)


def _all_failed(errors: Mapping[str, RcpError], *, only_late: bool) -> RcpError:
    waits = [wait for error in errors.values() if (wait := retry_after_ms(error)) is not None]
    data: dict[str, Any] = {
        "engines": {id: {"code": error.code, "message": said(error.message)} for id, error in errors.items()}
    }
    if waits:
        data["retryAfterMs"] = min(waits)
    if only_late:
        return Timeout("no engine answered before the deadline", data=data)
    retryable = any(error.retryable for error in errors.values())
    return BackendUnavailable("every engine failed", retryable=retryable, data={**data, "retryable": retryable})


def refusal(reasons: Sequence[Reason], message: str = "no engine can serve this request") -> RcpError:
    """``-32005``: engines could not be asked as the request wants it."""
    first = reasons[0]
    data: dict[str, Any] = {
        "option": first.option or "filter",
        "reasons": {reason.engine: said(reason.message) for reason in reasons},
    }
    if first.field is not None:
        data["field"] = first.field
    return Unsupported(message, code=Code.OPTION_UNSUPPORTED, data=data)
