"""A retrieve as the body of ``POST /collections/{c}/points/query``. Both wires start from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.errors import InternalError, option_unsupported
from gateway.filters import Instant
from gateway.spi import EngineQuery, Mode
from gateway_qdrant.collection import Binding, Vector
from gateway_qdrant.settings import QdrantConfig, modes_of

__all__ = ["Encoder", "Requests", "as_filter", "default_mode"]

Body = dict[str, Any]
Encoder = Callable[[str], Mapping[str, Any]]
"""A query text as a sparse vector, or as what the server makes one from; empty if the text has no word to look for."""

_SPARE = 8
"""Points asked for beyond ``k`` where Qdrant merges lists: its order of equal scores changes from call to call, and so
does what a cut among them leaves. Under RRF few share a score."""

_DAY_S = 86_400.0
_NEUTRAL = 0.5
"""What a document without a date is multiplied by under recency, as in the gateway's own (SEMANTICS section 4)."""


def default_mode(config: QdrantConfig) -> Mode:
    """The configured default mode, else the most complete one."""
    return config.default_mode or modes_of(config)[-1]


def as_filter(native: Mapping[str, Any]) -> Mapping[str, Any]:
    """A native filter as the filter of a request, which a bare condition is not."""
    return native if native.keys() & {"must", "should", "must_not"} else {"must": [native]}


def _reach(body: Mapping[str, Any]) -> int:
    """How many points the answer can hold: all that its lists bring."""
    prefetch = body["prefetch"]
    return sum(one["limit"] for one in ([prefetch] if isinstance(prefetch, Mapping) else prefetch))


class Requests:
    """Builds bodies for one open collection. Pure, but for the clock that it is given for recency.

    ``most`` is the largest limit that the server takes, ``None`` if it says none.
    """

    def __init__(
        self,
        config: QdrantConfig,
        vector: Vector | None,
        encoder: Encoder | None,
        bindings: Mapping[str, Binding],
        now: Callable[[], float],
        most: int | None = None,
    ) -> None:
        self._config = config
        self._vector = vector
        self._encoder = encoder
        self._bindings = bindings
        self._now = now
        self._most = most

    def mode(self, query: EngineQuery) -> Mode:
        """The mode that serves this query. Raises ``-32005`` for one that is not offered."""
        mode = query.mode or default_mode(self._config)
        if mode not in modes_of(self._config):
            raise option_unsupported(f"mode {mode} is not offered by this engine", option=mode)
        return mode

    def body(self, query: EngineQuery) -> Body | None:
        """The whole request, ``None`` if there is nothing to look for.

        ``limit`` of every list is the depth that was asked for, never a server's default. Where lists are merged it is
        a little more than ``k``; the caller cuts.
        """
        mode = self.mode(query)
        depth = max(query.k, query.candidate_k or 0)
        native = None if query.filter is None else as_filter(query.filter)
        body = self._search(query, mode, depth, native)
        if body is None:
            return None
        if query.recency is not None and "recency" in self._config.native:
            if "prefetch" in body:  # whole, since nobody can put its end in order
                body["limit"] = self._bounded(_reach(body))
            body = {"prefetch": body, "query": self._decayed(query, mode)}
        return {
            **body,
            "limit": self._bounded(min(query.k + _SPARE, _reach(body))) if "prefetch" in body else query.k,
            "with_payload": True if query.include_text else {"exclude": list(self._config.payload.text)},
            "with_vector": self._vectors_wanted(query),
        }

    def whole(self, body: Body) -> Body:
        """The same request for all that its lists bring."""
        return {**body, "limit": self._bounded(_reach(body))}

    def _bounded(self, limit: int) -> int:
        return limit if self._most is None else min(limit, self._most)

    def _search(self, query: EngineQuery, mode: Mode, depth: int, native: Mapping[str, Any] | None) -> Body | None:
        if mode == "dense":
            return self._dense(query, depth, native)
        sparse = self._sparse(query, depth, native)
        if mode == "sparse":
            return sparse
        dense = self._dense(query, depth, native)
        if sparse is None:  # still through fusion, so that scores of this mode are on one scale
            return {"prefetch": [dense], "query": self._fusion(query, alone=True), "limit": depth}
        return {"prefetch": [dense, sparse], "query": self._fusion(query), "limit": depth}

    def _dense(self, query: EngineQuery, depth: int, native: Mapping[str, Any] | None) -> Body:
        dense = self._config.vectors.dense
        if dense is None or query.vector is None:
            raise InternalError(data={"reason": "the query came without the vector this engine needs"})
        target: Any = list(query.vector)
        if query.mmr is not None and "mmr" in self._config.native:
            keep = 0.5 if query.mmr.lambda_ is None else query.mmr.lambda_
            target = {"nearest": target, "mmr": {"diversity": 1 - keep, "candidates_limit": depth}}
        body = _stage(target, dense.name, depth, native)
        if params := self._params():
            body["params"] = params
        return body

    def _sparse(self, query: EngineQuery, depth: int, native: Mapping[str, Any] | None) -> Body | None:
        sparse = self._config.vectors.sparse
        if sparse is None or self._encoder is None:
            raise InternalError
        target = self._encoder(query.text)
        return _stage(dict(target), sparse.name, depth, native) if target else None

    def _params(self) -> Body:
        search = self._config.search
        given = {"exact": search.exact, "hnsw_ef": search.hnsw_ef, "indexed_only": search.indexed_only}
        return {name: value for name, value in given.items() if value}

    def _fusion(self, query: EngineQuery, *, alone: bool = False) -> Body:
        """RCP's own constant counts ranks from 1, Qdrant's from 0, hence the one in between.

        Qdrant's plain ``rrf`` has a constant of 2, so the parameters are always written out.
        """
        hybrid, asked = self._config.hybrid, query.fusion
        method = (asked.method if asked is not None else None) or hybrid.fusion
        if method == "dbsf":
            return {"fusion": "dbsf"}
        if method != "rrf":
            raise option_unsupported(f"fusion {method} is not offered by this engine", option=method)
        k = asked.rrf_k if asked is not None and asked.rrf_k is not None else hybrid.rrf_k
        given = (asked.weights if asked is not None else None) or {}
        weights = [given.get("dense", hybrid.dense_weight), given.get("sparse", hybrid.sparse_weight)]
        plain = alone or weights[0] == weights[1]
        return {"rrf": {"k": k + 1} if plain else {"k": k + 1, "weights": weights}}

    def _can_decay(self, mode: Mode) -> bool:
        """A factor only orders scores that are never negative and higher the better."""
        return mode != "dense" or (self._vector is not None and self._vector.distance == "cosine")

    def _decayed(self, query: EngineQuery, mode: Mode) -> Body:
        """``score · 2^(-age / half-life)``. Without ``defaults`` one document without the date fails the whole call."""
        recency = query.recency
        if recency is None:
            raise InternalError
        if not self._can_decay(mode):
            raise option_unsupported("recency needs scores that are never negative", option="recency")
        name = recency.field or ""
        field = self._bindings.get(name)
        if field is None or field.key is None or field.type != "date" or field.epoch_ms:
            raise option_unsupported(
                "recency needs a date field of this engine, stored as text", option=f"recency.{name}"
            )
        half_life = (recency.half_life_days or 30.0) * _DAY_S
        now = self._now()
        decay = {
            "exp_decay": {
                "x": {"datetime_key": field.key},
                "target": {"datetime": _rfc3339(now)},
                "scale": half_life,
                "midpoint": _NEUTRAL,
            }
        }
        score: Any = {"mult": [0.5, {"sum": ["$score", 1.0]}]} if mode == "dense" else "$score"
        # One half-life ago is the date whose factor is one half.
        return {"formula": {"mult": [score, decay]}, "defaults": {field.key: _rfc3339(now - half_life)}}

    def _vectors_wanted(self, query: EngineQuery) -> Any:
        dense = self._config.vectors.dense
        if not query.include_vectors or dense is None:
            return False
        return [dense.name] if dense.name else True


def _stage(target: Any, name: str | None, depth: int, native: Mapping[str, Any] | None) -> Body:
    body: Body = {"query": target, "limit": depth}
    if name:
        body["using"] = name
    if native is not None:
        body["filter"] = native
    return body


def _rfc3339(seconds: float) -> str:
    return Instant(max(0, round(seconds * 1_000_000))).rfc3339()
