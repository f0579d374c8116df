"""What engines answer, held to the types that their methods promise.

An adapter may be anybody's. These run where an engine's errors are caught, so that what is of another shape costs that
engine the call, and not everybody the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.errors import BackendUnavailable, UpstreamError
from gateway.federation.reading import sound
from gateway.model import EmbedCapability, Hit, MultiVectorCapability, member
from gateway.spi.codec import finite_float, mend
from gateway.spi.methods import GraphReply, Matrix, MemoryReply, SparseVector, TransformReply

__all__ = [
    "LONGEST",
    "Vector",
    "aligned",
    "shaped",
    "sound_graph",
    "sound_matrices",
    "sound_memory",
    "sound_sparse",
    "sound_transform",
    "sound_vectors",
]

T = TypeVar("T", bound=msgspec.Struct)

Vector = tuple[float, ...]

LONGEST = 65_536
"""Characters of a query that an engine makes of another, as many as a client's own may have."""


def shaped(reply: Any, type: type[T]) -> T:
    """The reply as the struct it should be, member by member. Raises ``BackendUnavailable`` for what does not fit."""
    try:
        # A struct of the type would be taken as it is: nothing looks into one that is made by hand.
        members = {name: getattr(reply, name) for name in type.__struct_fields__}
        return msgspec.convert(members, type, from_attributes=True)
    except (AttributeError, OverflowError, msgspec.ValidationError) as error:
        raise BackendUnavailable(f"its answer is of another shape: {error}", retryable=False) from None


def aligned(given: Any, count: int, *, whole: bool = False) -> list[float | None]:
    """A reranker's scores for so many passages; ``None`` for what is no finite number, and for those it left out.

    It may leave out the last ones, unless ``whole``. Raises ``BackendUnavailable`` otherwise, and for more scores than
    passages: nobody knows which is whose.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise BackendUnavailable("its scores are no list", retryable=False)
    if len(given) > count or (whole and len(given) < count):
        raise BackendUnavailable(f"it gave {len(given)} scores for {count} passages")
    if not all(one is None or (isinstance(one, int | float) and not isinstance(one, bool)) for one in given):
        raise BackendUnavailable("its scores are no numbers", retryable=False)
    scores = [finite_float(one) for one in given]
    return [*scores, *[None] * (count - len(scores))]


def sound_vectors(
    given: Sequence[Vector], count: int, offered: EmbedCapability | MultiVectorCapability | None = None
) -> Sequence[Vector]:
    """What an embedder returned, if it is one vector per text, of the dimension it offers and of finite numbers.

    Raises :class:`~gateway.errors.UpstreamError` otherwise: a vector nobody can use is no vector.
    """
    if len(given) != count:
        raise BackendUnavailable(f"it gave {len(given)} vectors for {count} texts")
    lengths = {len(vector) for vector in given}
    if len(lengths) > 1 or 0 in lengths:
        raise BackendUnavailable("its vectors are not of one dimension")
    dimension = offered.dimension if offered is not None else None
    if dimension and lengths and lengths != {dimension}:
        raise UpstreamError(f"it gave vectors of {lengths.pop()} numbers and offers {dimension}")
    if not all(isfinite(value) for vector in given for value in vector):
        raise BackendUnavailable("its vectors hold something that is not a finite number")
    return given


def sound_sparse(vectors: Sequence[SparseVector], count: int) -> list[SparseVector]:
    """The engine's sparse vectors, if they are what was asked for. Raises ``BackendUnavailable``."""
    if len(vectors) != count:
        raise BackendUnavailable(f"it gave {len(vectors)} sparse vectors for {count} texts")
    for one in vectors:
        paired = len(one.indices) == len(one.values)
        if not paired or not all(map(isfinite, one.values)) or min(one.indices, default=0) < 0:
            raise BackendUnavailable("it gave a sparse vector that is none")
    return list(vectors)


def sound_matrices(given: Sequence[Matrix], count: int, offered: MultiVectorCapability | None) -> list[Matrix]:
    """The same of matrices, one per text, whose rows are all of one dimension."""
    if len(given) != count:
        raise BackendUnavailable(f"it gave {len(given)} matrices for {count} texts")
    rows = [row for matrix in given for row in matrix]
    sound_vectors(rows, len(rows), offered)
    return [tuple(tuple(map(float, row)) for row in matrix) for matrix in given]


def sound_transform(reply: Any, most: int) -> TransformReply:
    """At most so many queries, none of them blank, and the passage; each as sound text of a length that is meant."""
    own = shaped(reply, TransformReply)
    queries = tuple(text for one in own.queries[: 4 * most] if (text := mend(one[:LONGEST]).strip()))[:most]
    passage = None if own.hypothetical is None else mend(own.hypothetical[:LONGEST]).strip()
    return replace(own, queries=queries, hypothetical=passage or None)


class _Graph(msgspec.Struct):
    """What of a graph's answer has types of its own; hits are looked at one by one."""

    edges: tuple[_Edge, ...]
    followups: tuple[str, ...]
    summary: str | None
    notes: tuple[str, ...]


class _Edge(msgspec.Struct):
    src: str | int | float
    dst: str | int | float
    weight: float | None
    members: dict[str, Any]


class _Memory(msgspec.Struct):
    clues: tuple[_Clue, ...]
    notes: tuple[str, ...]


class _Clue(msgspec.Struct):
    query: str | None
    seed_ids: tuple[str | int | float, ...]
    weight: float | None


def sound_graph(reply: Any) -> GraphReply:
    """The reply, if all but its hits is as it should be; hits are looked at one by one. Else ``BackendUnavailable``."""
    shaped(reply, _Graph)
    _lists(reply.hits, reply.communities, reply.nodes)
    communities = [_told(one) for one in sound(reply.communities)]
    found: GraphReply = replace(reply, hits=sound(reply.hits), nodes=sound(reply.nodes), communities=communities)
    return found


def _told(community: Hit) -> Hit:
    """A community's summary is a text, or there is none."""
    if "summary" not in community.members or isinstance(member(community, "summary"), str):
        return community
    kept = {name: value for name, value in community.members.items() if name != "summary"}
    return replace(community, members=kept)


def sound_memory(reply: Any) -> MemoryReply:
    """The same of a memory's."""
    shaped(reply, _Memory)
    _lists(reply.hits)
    found: MemoryReply = replace(reply, hits=sound(reply.hits))
    return found


def _lists(*given: Any) -> None:
    for one in given:
        if isinstance(one, str | bytes) or not isinstance(one, Sequence):
            raise BackendUnavailable("its hits are no list", retryable=False)
