"""The shapes of ``POST /api/v1/retrieval/retrieve``, for both directions.

Source: the API reference and the official client (``llama-cloud`` 2.19). Names are the wire's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import msgspec

from gateway.spi import Body, read_body

__all__ = [
    "FILE_FIELD",
    "MAX_TOP_K",
    "OPERATORS",
    "PATH",
    "Attachment",
    "Bound",
    "Rerank",
    "Result",
    "RetrieveRequest",
    "StaticFields",
    "read_request",
    "read_results",
]

PATH: Final = "/api/v1/retrieval/retrieve"
MAX_TOP_K: Final = 500
"""The service gives no more, whatever ``top_k`` says, and does not tell."""

FILE_FIELD: Final = "parsed_directory_file_id"
"""The one built-in field that can be filtered on (``static_filters``)."""

OPERATORS: Final = ("eq", "gt", "gte", "in", "lt", "lte", "ne", "nin")

_LISTS: Final = ("in", "nin")


class Bound(msgspec.Struct, frozen=True):
    """One condition of a field: a scalar, or a list under ``in`` and ``nin``."""

    operator: str
    value: Any


class Rerank(msgspec.Struct, frozen=True, omit_defaults=True):
    """``enabled`` is always written: left out, the service reranks."""

    enabled: bool
    top_n: int | None = None


class RetrieveRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked. A filter is one condition of a field, or a list of them that must all hold."""

    index_id: str
    query: str
    custom_filters: Mapping[str, Bound | tuple[Bound, ...]] | None = None
    static_filters: Mapping[str, Bound] | None = None
    full_text_pipeline_weight: float | None = None
    vector_pipeline_weight: float | None = None
    num_candidates: int | None = None
    rerank: Rerank | None = None
    score_threshold: float | None = None
    top_k: int | None = None


class Attachment(msgspec.Struct, frozen=True):
    attachment_name: str
    source_id: str
    type: str


class StaticFields(msgspec.Struct, frozen=True, kw_only=True):
    """What the service knows of every chunk. Characters and pages as it counts them; the first page is 1."""

    attachments: tuple[Attachment, ...] = ()
    chunk_end_char: int | None = None
    chunk_index: int | None = None
    chunk_start_char: int | None = None
    chunk_token_count: int | None = None
    page_range_end: int | None = None
    page_range_start: int | None = None
    parsed_directory_file_id: str | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk. There is no id among the members."""

    content: str
    metadata: Mapping[str, Any] | None = None
    rerank_score: float | None = None
    score: float | None = None
    static_fields: StaticFields = StaticFields()


# An answer, as it comes: nothing in it is trusted.


def read_results(answer: Any) -> list[Result] | None:
    """The results of an answer, ``None`` if it is none. A member of the wrong type is read as absent."""
    listed = answer.get("results") if isinstance(answer, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
        return None
    return [_result(one) for one in listed]


def _result(one: Mapping[str, Any]) -> Result:
    content, metadata, static = one.get("content"), one.get("metadata"), one.get("static_fields")
    return Result(
        content=content if isinstance(content, str) else "",
        metadata=metadata if isinstance(metadata, Mapping) else None,
        rerank_score=_number(one.get("rerank_score")),
        score=_number(one.get("score")),
        static_fields=_static(static) if isinstance(static, Mapping) else StaticFields(),
    )


def _static(given: Mapping[str, Any]) -> StaticFields:
    file, attachments = given.get(FILE_FIELD), given.get("attachments")
    return StaticFields(
        attachments=tuple(found for one in attachments if (found := _attachment(one)) is not None)
        if isinstance(attachments, list)
        else (),
        chunk_end_char=_count(given.get("chunk_end_char")),
        chunk_index=_count(given.get("chunk_index")),
        chunk_start_char=_count(given.get("chunk_start_char")),
        chunk_token_count=_count(given.get("chunk_token_count")),
        page_range_end=_count(given.get("page_range_end")),
        page_range_start=_count(given.get("page_range_start")),
        parsed_directory_file_id=file if isinstance(file, str) and file else None,
    )


def _attachment(one: Any) -> Attachment | None:
    if not isinstance(one, Mapping):
        return None
    name, source, type = one.get("attachment_name"), one.get("source_id"), one.get("type")
    if isinstance(name, str) and isinstance(source, str) and isinstance(type, str):
        return Attachment(name, source, type)
    return None


def _number(value: Any) -> float | None:
    """A finite number; a whole one stays whole."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number >= 0 and number == int(number) else None


# A request, as it comes.


def read_request(data: bytes) -> RetrieveRequest:
    """Raises :class:`gateway.spi.Faults` with everything that is wrong with it."""
    body = read_body(data)
    rerank = body.mapping("rerank")
    request = RetrieveRequest(
        index_id=body.required_text("index_id"),
        query=body.required_text("query"),
        custom_filters=_custom(body),
        static_filters=_static_filters(body),
        full_text_pipeline_weight=body.number("full_text_pipeline_weight", least=0, most=1),
        vector_pipeline_weight=body.number("vector_pipeline_weight", least=0, most=1),
        num_candidates=body.whole("num_candidates", least=1),
        rerank=None if rerank is None else _rerank(body.inside(rerank, "rerank")),
        score_threshold=body.number("score_threshold"),
        top_k=body.whole("top_k", least=1),
    )
    body.done()
    return request


def _rerank(body: Body) -> Rerank:
    return Rerank(body.flag("enabled", default=True), body.whole("top_n", least=1))


def _custom(body: Body) -> dict[str, Bound | tuple[Bound, ...]] | None:
    given = body.mapping("custom_filters")
    if given is None:
        return None
    found: dict[str, Bound | tuple[Bound, ...]] = {}
    for name, value in given.items():
        if isinstance(value, list):
            bounds = [_bound(body, one, "number", "custom_filters", name, place) for place, one in enumerate(value)]
            found[name] = tuple(bound for bound in bounds if bound is not None)
        elif value is not None and (bound := _bound(body, value, "scalar", "custom_filters", name)) is not None:
            found[name] = bound
    return found


def _static_filters(body: Body) -> dict[str, Bound] | None:
    given = body.mapping("static_filters")
    if given is None or given.get(FILE_FIELD) is None:
        return None
    bound = _bound(body, given[FILE_FIELD], "string", "static_filters", FILE_FIELD)
    return None if bound is None else {FILE_FIELD: bound}


def _bound(body: Body, value: Any, kind: str, *loc: str | int) -> Bound | None:
    """One condition. ``kind`` is what its values may be: ``scalar``, ``number`` or ``string``."""
    if not isinstance(value, Mapping):
        body.fault("model_attributes_type", "Input should be a valid dictionary", *loc, input=value)
        return None
    one = body.inside(value, *loc)
    if "operator" not in value:
        one.fault("missing", "Field required", "operator")
    operator = one.choice("operator", OPERATORS, "eq")
    if "value" not in value:
        one.fault("missing", "Field required", "value")
        return None
    given = value["value"]
    if operator in _LISTS:
        if not isinstance(given, list) or not given:
            one.fault("list_type", "Input should be a valid list with at least one item", "value", input=given)
            return None
        wrong = [place for place, item in enumerate(given) if not _fits(item, kind)]
        for place in wrong:
            one.fault(f"{kind}_type", f"Input should be a valid {kind}", "value", place, input=given[place])
        return None if wrong else Bound(operator or "eq", given)
    if not _fits(given, kind):
        one.fault(f"{kind}_type", f"Input should be a valid {kind}", "value", input=given)
        return None
    return Bound(operator or "eq", given)


def _fits(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "number":
            return _number(value) is not None
        case _:
            return isinstance(value, str | bool) or _number(value) is not None
