"""The vendor's async client, with our deadlines and our errors."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gateway.errors import BackendUnavailable, ConfigError, PluginError, RcpError, Timeout, UpstreamError
from gateway.spi import EngineContext, HttpResponse, raise_for_status
from gateway.spi.codec import dumps
from gateway.spi.http import Headers
from gateway_pinecone.settings import PineconeConfig

if TYPE_CHECKING:
    from pinecone import AsyncIndex

__all__ = ["Client", "open_client"]

T = TypeVar("T")

_CONNECTIONS: Final = 64
_GRACE: Final = 0.1
"""Seconds. The host cancels at the deadline; our own end of the call comes just behind it, so that it is the host who
says whether it was the engine or an impatient client."""


class Client:
    """One open index."""

    def __init__(self, index: AsyncIndex, sdk: ModuleType, errors: ModuleType, context: EngineContext) -> None:
        self.index = index
        self._sdk = sdk
        self._errors = errors
        self._context = context

    async def ask(self, operation: Callable[[AsyncIndex, float], Awaitable[T]], remaining: float) -> T:
        """One operation of the SDK within ``remaining`` seconds, retries of its own included.

        The operation is given the time for a single attempt. Raises our errors only.
        """
        if remaining <= 0:
            raise Timeout("no time was left to ask")
        limit = remaining + _GRACE
        errors = self._errors
        try:
            # The SDK's own timeout counts anew for each attempt and each of connect, write and read.
            async with asyncio.timeout(limit):
                return await operation(self.index, limit)
        except TimeoutError:  # the SDK's is one too
            raise Timeout(f"no answer within {remaining:.3g} s") from None
        except errors.ApiError as error:
            raise self._refusal(error) from None
        except errors.PineconeConnectionError as error:
            raise _told(BackendUnavailable("the engine cannot be reached"), error) from None
        except errors.ResponseParsingError as error:
            raise _told(BackendUnavailable("the engine's answer cannot be read"), error) from None
        except (errors.PineconeValueError, errors.PineconeTypeError) as error:
            # What we send has been checked, so this is a fault of the adapter.
            self._context.logger.error("the Pinecone SDK refuses the request: %s", error)
            raise _told(UpstreamError("the Pinecone SDK does not accept the gateway's request"), error) from None
        except self._transport_faults() as error:
            raise _told(BackendUnavailable("the engine's answer cannot be read"), error) from None

    def _transport_faults(self) -> tuple[type[Exception], ...]:
        """What httpx raises and the SDK lets through, such as a body that cannot be unpacked."""
        import httpx

        return (httpx.HTTPError, httpx.InvalidURL, self._errors.PineconeError)

    def _refusal(self, error: Any) -> RcpError:
        body = error.message.encode("utf-8", "replace") if error.body is None else dumps(error.body)
        headers = Headers((error.headers or {}).items())
        try:
            raise_for_status(HttpResponse(error.status_code, headers, body), now=self._context.now())
        except RcpError as refusal:
            if error.status_code in (400, 422):
                self._context.logger.error("Pinecone refuses the request: %s", refusal.detail)
            return _explained(refusal, error.status_code)
        return BackendUnavailable("the engine's answer cannot be read")


def _explained(error: RcpError, status: int) -> RcpError:
    """The fault with its cause and remedy, where the status tells them. Pinecone's own words stay in ``detail``."""
    match status:
        case 401 | 403:
            told = "Pinecone does not accept the API key: renew it and check api_key in the engine's settings"
        case 404:
            told = "Pinecone has no such index or namespace: check host and namespace in the engine's settings"
        case _:
            return error
    replaced = UpstreamError(told, code=error.code, retryable=error.retryable, data=error.data)
    replaced.detail = error.detail
    return replaced


def _told(error: RcpError, cause: Exception) -> RcpError:
    error.detail = f"{type(cause).__name__}: {cause}"[:300]
    return error


def _load() -> tuple[ModuleType, ModuleType, type[AsyncIndex]]:
    try:
        import pinecone
        import pinecone.errors.exceptions as errors
        from pinecone import AsyncIndex
    except ImportError as error:
        raise PluginError(
            f"{error.name or 'pinecone'} is not installed: pip install 'rcp-gateway[pinecone]'",
            distribution="rcp-gateway",
        ) from error
    return pinecone, errors, AsyncIndex


@asynccontextmanager
async def open_client(config: PineconeConfig, context: EngineContext) -> AsyncIterator[Client]:
    """A client for one engine. Nothing is dialled before the first request."""
    # Loading takes half a second, which no other call should wait for.
    sdk, errors, index_type = await context.run_blocking(_load)
    try:
        index = index_type(
            host=config.host,
            api_key=config.api_key.reveal(),
            # Any header keeps the SDK from taking further ones out of the environment.
            additional_headers={"Accept": "application/json"},
            source_tag="rcp_gateway",
            # The host bounds how many calls are in flight; none of them should wait here as well.
            connection_pool_maxsize=_CONNECTIONS,
        )
    except errors.PineconeError as error:
        raise ConfigError(str(error)) from None
    if not _ask_once(index, sdk):
        context.logger.debug("this Pinecone SDK keeps its own retries; the deadline ends them")
    try:
        yield Client(index, sdk, errors, context)
    finally:
        await index.close()


def _ask_once(index: Any, sdk: Any) -> bool:
    """Turns the SDK's own retries off: the gateway retries within the leg's time, and tells the caller ``Retry-After``
    where the SDK would sleep it out. The SDK has a setting for it and its index client (10.2) does not take it, so it
    is set where the client reads it; whether that worked is the answer."""
    http = getattr(index, "_http", None)
    settings = getattr(http, "_config", None)
    try:
        http._config = dataclasses.replace(settings, retry_config=sdk.RetryConfig(max_retries=0))  # type: ignore[union-attr,type-var]
    except (AttributeError, TypeError):
        return False
    return True
