"""The methods of RCP/1 and how their parameters are read (spec section 7)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, get_args

import msgspec

from gateway import _json
from gateway.errors import CallerError, Code, invalid_params
from gateway.model import (
    Capabilities,
    EmbedRequest,
    FeedbackRequest,
    GraphRequest,
    IndexAddRequest,
    IndexDeleteRequest,
    InitializeRequest,
    MemoryBuildRequest,
    MemoryRecallRequest,
    Message,
    RerankRequest,
    RetrieveRequest,
    TransformRequest,
)
from gateway.protocol.validate import MAX_INTEGER, validated

__all__ = ["METHODS", "Method", "decode", "meta_of_params", "offered"]


@dataclass(frozen=True, slots=True)
class Method:
    """One method. ``params`` is ``None`` where no struct exists: the handler then gets the plain object.

    ``capability`` is the attribute of :class:`Capabilities` that must be there, ``None`` for what every server has.
    """

    name: str
    params: type[Message] | None
    capability: str | None


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("initialize", InitializeRequest, None),
            Method("info", None, None),
            Method("ping", None, None),
            Method("shutdown", None, None),
            Method("embed", EmbedRequest, "embed"),
            Method("embed/sparse", EmbedRequest, "sparse_embed"),
            Method("embed/multi", EmbedRequest, "multi_vector"),
            Method("rerank", RerankRequest, "rerank"),
            Method("retrieve", RetrieveRequest, "retrieve"),
            Method("query/transform", TransformRequest, "transform"),
            Method("graph", GraphRequest, "graph"),
            Method("index/add", IndexAddRequest, "index"),
            Method("index/delete", IndexDeleteRequest, "index"),
            Method("catalog/list", None, "catalog"),
            Method("feedback", FeedbackRequest, "feedback"),
            Method("memory/build", MemoryBuildRequest, "memory"),
            Method("memory/recall", MemoryRecallRequest, "memory"),
        )
    }
)


def offered(name: str, capabilities: Capabilities) -> bool:
    """True if the capabilities offer the method (section 6). Vendor methods go by their ``x-…`` member (6.2)."""
    method = METHODS.get(name)
    if method is None:
        vendor, slash, _ = name.partition("/")
        return bool(slash) and vendor.startswith("x-") and vendor in capabilities.vendor
    if method.capability is None:
        return True
    if getattr(capabilities, method.capability) is None:
        return False
    # Section 7.10: a read-only index offers nothing to add to.
    return name != "index/add" or bool(capabilities.index and capabilities.index.writable)


def decode(name: str, raw: bytes) -> Any:
    """The parameters of a method, checked as far as capabilities do not matter.

    A :class:`Message` for methods that have one, a plain ``dict`` for others. ``raw`` is ``b""`` if there were none.
    Raises ``-32602`` with ``data.field``; the error's text holds types and names, no values.
    """
    method = METHODS.get(name)
    if not raw or raw == b"null":
        raw = b"{}"
    if not raw.startswith(b"{"):
        raise invalid_params("params must be an object", field="params")
    if method is None or method.params is None:
        plain = _load(raw, dict[str, Any])
        if not isinstance(plain.get("_meta") or {}, dict):
            raise invalid_params("_meta must be an object", field="_meta")
        return plain
    return validated(_load(raw, method.params))


def meta_of_params(params: Any) -> Mapping[str, Any]:
    """The ``_meta`` of decoded parameters, empty if there is none."""
    meta = params.get("_meta") if isinstance(params, dict) else getattr(params, "meta", None)
    return meta if isinstance(meta, Mapping) else {}


T = TypeVar("T")


def _load(raw: bytes, type: type[T]) -> T:
    try:
        return _json.decode(raw, type)
    except ValueError:
        pass
    # Once more, for what JSON Schema allows and the decoder does not: bad UTF-8 mended, 10.0 as an integer, null for
    # "absent" inside a map.
    try:
        raw = raw.decode("utf-8", "replace").encode()
        plain = _json.decode(raw, Any)
        return msgspec.convert(_lenient(plain, type), type)
    except _json.ValidationError as error:
        raise _refusal(error) from None
    except ValueError:
        raise CallerError("the parameters are not valid JSON", code=Code.PARSE_ERROR) from None


def _lenient(value: Any, type: Any) -> Any:
    """The value with whole floats as integers wherever the type wants an integer; nothing else is touched."""
    wanted = get_args(type) or (type,)
    if isinstance(value, float) and int in wanted and float not in wanted:
        return int(value) if value.is_integer() and abs(value) <= MAX_INTEGER else value
    if not isinstance(value, dict):
        return value
    if dict[str, float] in wanted or type == dict[str, float]:
        return {name: item for name, item in value.items() if item is not None}
    for struct in wanted:
        if isinstance(struct, _STRUCT_TYPE) and issubclass(struct, Message):
            known = _members(struct)
            return {name: _lenient(item, known[name]) if name in known else item for name, item in value.items()}
    return value


_STRUCT_TYPE = type(Message)


@cache
def _members(struct: type[Message]) -> Mapping[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?:key` in `)?\$\.?(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")


def _refusal(error: Exception) -> CallerError:
    match = _PLACE.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else ("wrong shape", "")
    missing = _MISSING.search(what)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
    what = what.replace("`", "").replace(" | null", "")
    return invalid_params(f"{path or 'params'}: {what[:1].lower()}{what[1:]}", field=path or "params")
