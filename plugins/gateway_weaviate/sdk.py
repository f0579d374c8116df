"""The official client: loaded when an engine opens, since importing it takes more than a second and 65 MB."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from gateway.errors import PluginError
from gateway_weaviate.filters import Group, Leaf, Native
from gateway_weaviate.settings import WeaviateConfig

__all__ = ["Sdk", "connected", "load_sdk", "sdk_filter"]

_CLOSE_SECONDS = 2.0
_METHODS = {
    "Equal": "equal",
    "NotEqual": "not_equal",
    "GreaterThan": "greater_than",
    "GreaterThanEqual": "greater_or_equal",
    "LessThan": "less_than",
    "LessThanEqual": "less_or_equal",
    "Like": "like",
    "IsNull": "is_none",
}


@dataclass(frozen=True, slots=True)
class Sdk:
    """The parts of the client that are used. ``errors`` is all that a call of it may raise."""

    connect: Any
    init: Any
    filter: Any
    metadata: Any
    fusion: Any
    data_object: Any
    consistency: Any
    all_failed: type[Exception]
    errors: tuple[type[Exception], ...]


def load_sdk() -> Sdk:
    """Imports the client. Blocking; run it in a thread."""
    try:
        import httpx
        import weaviate
        import weaviate.classes as wvc
        from grpc.aio import AioRpcError  # type: ignore[import-untyped]
        from weaviate.exceptions import WeaviateBaseError, WeaviateInsertManyAllFailedError
    except ImportError as error:
        raise PluginError(
            f"an engine of kind weaviate needs the extra 'weaviate': pip install 'rcp-gateway[weaviate]' ({error})",
            distribution="rcp-gateway",
        ) from error
    logging.getLogger("weaviate-client").addFilter(_without_documents)
    return Sdk(
        connect=weaviate.use_async_with_custom,
        init=wvc.init,
        filter=wvc.query.Filter,
        metadata=wvc.query.MetadataQuery,
        fusion=wvc.query.HybridFusion,
        data_object=wvc.data.DataObject,
        consistency=wvc.config.ConsistencyLevel,
        all_failed=WeaviateInsertManyAllFailedError,
        # ValueError and TypeError: a stored date or a value that the client's own readers and writers stumble over.
        errors=(WeaviateBaseError, AioRpcError, httpx.HTTPError, OSError, ValueError, TypeError, KeyError),
    )


def _without_documents(record: logging.LogRecord) -> bool:
    """The client logs whole documents when a batch fails in part; what was wrong is in our own error's detail."""
    if isinstance(record.msg, dict) and "errors" in record.msg:
        record.msg = record.msg.get("message", "a batch failed in part")
    return True


@asynccontextmanager
async def connected(sdk: Sdk, config: WeaviateConfig) -> AsyncIterator[Any]:
    """A connected client, closed in the end whatever happens: it complains when it is dropped instead."""
    rest, grpc = config.rest, config.remote
    init = sdk.init
    client = sdk.connect(
        rest.host,
        rest.port,
        rest.secure,
        grpc.host,
        grpc.port,
        grpc.secure,
        headers={name: secret.reveal() for name, secret in config.headers.items()},
        auth_credentials=None if config.api_key is None else config.api_key.reveal(),
        additional_config=init.AdditionalConfig(
            trust_env=False,
            # gRPC reads proxies from the environment on its own.
            grpc_config=init.GrpcConfig(channel_options=[("grpc.enable_http_proxy", 0)]),
        ),
        skip_init_checks=True,  # they ask a package index whether there is a newer client
    )
    try:
        await client.connect()
        yield client
    finally:
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await client.close()


def sdk_filter(sdk: Sdk, native: Native) -> Any:
    """The filter as the client has it."""
    if isinstance(native, Leaf):
        return getattr(sdk.filter.by_property(native.property), _METHODS[native.operator])(native.value)
    parts: Sequence[Any] = [sdk_filter(sdk, part) for part in native.parts]
    match native:
        case Group("Not"):
            return sdk.filter.not_(parts[0])
        case Group("And"):
            return sdk.filter.all_of(parts)
        case _:
            return sdk.filter.any_of(parts)
