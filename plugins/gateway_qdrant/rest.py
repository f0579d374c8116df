"""A Qdrant server over REST, through the gateway's own HTTP seam.

The official client is not used: importing it costs seconds and 86 MB, and it hides the deadline, ``Retry-After`` and
the error's body. In the tests its strict models check every body that is sent from here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from gateway.errors import BackendUnavailable, ConfigError, RcpError, UpstreamError
from gateway.spi import HttpClient, HttpResponse, raise_for_status
from gateway_qdrant.collection import Collection, Strict, Vector
from gateway_qdrant.wire import Point

__all__ = ["RestWire", "read_collection"]

_SUBSTRING_SINCE = (1, 20)
_OPEN_TIMEOUT = 10.0
_ANSWER_MARGIN = 0.95
"""The server is told to give up a little before we do, so that its own message comes first."""

_DISTANCES = {"Cosine": "cosine", "Dot": "dot", "Euclid": "euclid", "Manhattan": "manhattan"}


class RestWire:
    """``collection`` is the server's name for it, an alias too."""

    def __init__(self, http: HttpClient, collection: str) -> None:
        self._http = http
        self._name = collection
        self._root = f"collections/{quote(collection, safe='')}"
        self._max_timeout: int | None = None

    async def describe(self) -> Collection:
        result = await self._call("GET", self._root, _OPEN_TIMEOUT)
        found = read_collection(result, await self._version())
        self._max_timeout = found.strict.max_timeout
        return found

    async def _version(self) -> Any:
        """What the server says of itself, ``None`` where a proxy in front of it keeps that back."""
        try:
            return await self._call("GET", "", _OPEN_TIMEOUT, whole=True)
        except UpstreamError as error:
            if error.retryable:
                raise
            return None

    async def query(self, body: Mapping[str, Any], timeout: float) -> Sequence[Point]:
        result = await self._call("POST", f"{self._root}/points/query", timeout, json=body, params=self._limit(timeout))
        points = result.get("points") if isinstance(result, Mapping) else None
        if not isinstance(points, list) or not all(isinstance(point, Mapping) and "id" in point for point in points):
            raise BackendUnavailable("the answer of the Qdrant server is not a list of points")
        return points

    async def upsert(self, points: Sequence[Point], timeout: float) -> None:
        await self._call("PUT", f"{self._root}/points", timeout, json={"points": list(points)}, params={"wait": True})

    async def delete(self, ids: Sequence[int | str], timeout: float) -> int:
        """Counts first, since the server does not say what a deletion removed."""
        counted = await self._call(
            "POST",
            f"{self._root}/points/count",
            timeout,
            json={"filter": {"must": [{"has_id": list(ids)}]}, "exact": True},
            params=self._limit(timeout),
        )
        count = counted.get("count") if isinstance(counted, Mapping) else None
        if not isinstance(count, int):
            raise BackendUnavailable("the answer of the Qdrant server is not a count")
        if count:
            await self._call(
                "POST", f"{self._root}/points/delete", timeout, json={"points": list(ids)}, params={"wait": True}
            )
        return count

    async def remember(self, made_by: str) -> None:
        """A server has no place for it: there the settings say it."""

    async def ping(self, timeout: float) -> None:
        await self._call("GET", self._root, timeout)

    def _limit(self, timeout: float) -> dict[str, int]:
        """The server's own limit in whole seconds, so that it stops working for a caller that has gone."""
        seconds = max(1, math.ceil(timeout * _ANSWER_MARGIN))
        return {"timeout": min(seconds, self._max_timeout or seconds)}

    async def _call(
        self,
        method: str,
        path: str,
        timeout: float,
        *,
        json: Any = None,
        params: Mapping[str, int | bool] | None = None,
        whole: bool = False,
    ) -> Any:
        response = await self._http.request(method, path, json=json, params=params, timeout=timeout)
        try:
            raise_for_status(response)
        except RcpError as error:
            raise _explained(error, response, self._name) from None
        body = response.json()
        return body if whole else body.get("result") if isinstance(body, Mapping) else None


def _explained(error: RcpError, response: HttpResponse, collection: str) -> Exception:
    """The fault with its cause and remedy, where Qdrant's answer tells them. Its own words stay in ``detail``."""
    said = error.detail
    told: str | None = None
    match response.status:
        case 401 | 403:
            told = "the Qdrant server does not accept the API key: renew it and check api_key in the engine's settings"
        case 404 if "ollection" in said or not said:
            told = (
                f"the Qdrant server has no collection {collection!r}: create it and index documents into it, "
                "or correct collection in the engine's settings"
            )
        case 400 if field := re.search(r'Index required but not found for "?([^" ]+)"?', said):
            told = (
                f"the Qdrant server runs in strict mode and has no payload index on {field[1]!r}: create the index, "
                "or take the field out of the engine's settings"
            )
        case 400 if "imension" in said:
            told = (
                "the vectors are not of the collection's dimension: use the embedder that the collection was filled "
                "with, or index the documents anew"
            )
        case 400 if "ot existing vector name" in said or "vector name" in said:
            told = "the collection has no vector of the configured name: correct vectors in the engine's settings"
    if told is None:
        return error
    replaced = UpstreamError(told, code=error.code, retryable=error.retryable, data=error.data)
    replaced.detail = said
    return replaced


def read_collection(result: Any, version: Any) -> Collection:
    """What ``GET /collections/{c}`` and ``GET /`` say. Raises ``ConfigError`` if it is no such answer."""
    try:
        config = result["config"]
        params = config["params"]
        vectors = params.get("vectors") or {}
        unnamed = {"": vectors} if "size" in vectors and not isinstance(vectors["size"], Mapping) else vectors
        return Collection(
            dense={
                name: Vector(size=int(one["size"]), distance=_DISTANCES[one["distance"]])  # type: ignore[arg-type]
                for name, one in unnamed.items()
                if not one.get("multivector_config")
            },
            sparse={
                name: str((one or {}).get("modifier", "")).lower() == "idf"
                for name, one in (params.get("sparse_vectors") or {}).items()
            },
            indexes={key: str(one["data_type"]) for key, one in (result.get("payload_schema") or {}).items()},
            strict=_strict(config.get("strict_mode_config") or {}),
            substring=_version(version) >= _SUBSTRING_SINCE,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError("what answers at url does not look like a Qdrant server", path="url") from None


def _strict(given: Mapping[str, Any]) -> Strict:
    if not given.get("enabled"):
        return Strict()
    return Strict(
        unindexed=given.get("unindexed_filtering_retrieve") is not False,
        max_limit=given.get("max_query_limit"),
        max_conditions=given.get("filter_max_conditions"),
        max_values=given.get("condition_max_size"),
        max_timeout=given.get("max_timeout"),
        max_batch=given.get("upsert_max_batchsize"),
    )


def _version(answer: Any) -> tuple[int, ...]:
    """``(0,)`` if the server does not say, as some proxies have it: then nothing new is used."""
    text = answer.get("version") if isinstance(answer, Mapping) else None
    found = re.match(r"(\d+)\.(\d+)", text) if isinstance(text, str) else None
    return (int(found[1]), int(found[2])) if found else (0,)
