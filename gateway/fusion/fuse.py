"""Ranked lists in, one ranked list out. Pure: the result depends on the rankings, not on who answered first.

Hits are laid out flat and named by their position, so that counting touches integers; copies are only built for
documents that are returned, and members only decoded where engines returned the same document.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from gateway.fusion.identity import Identity, document_keys, qualify, read_identity, trust_splits
from gateway.fusion.merge import trust_level
from gateway.fusion.ranking import TRUST_LEVELS, Copy, Fused, Note, Ranking, Scale, twelve_digits
from gateway.fusion.strategies import RRF_K, Rrf, Strategy, usable_confidence
from gateway.fusion.texts import strangers
from gateway.fusion.weights import usable
from gateway.model import Hit, text_of_hit

__all__ = ["fuse", "fuse_queries"]


def fuse(
    rankings: Iterable[Ranking],
    strategy: Strategy,
    identity: str | Identity = "id",
    *,
    planned_max_weight: float | None = None,
    planned_total_weight: float | None = None,
    limit: int | None = None,
) -> tuple[list[Fused], list[Note]]:
    """The documents by score, then summed weight, then id by code point; at most ``limit`` of them; and notes.

    ``planned_max_weight`` and ``planned_total_weight`` are those of all planned legs, so that a failed one changes no
    scale; without them those of the rankings given. Raises ``ValueError`` for a ranking that may not be here: a second
    one of an engine, or one whose weight is not a positive finite number.
    """
    ordered = sorted(rankings, key=lambda ranking: (ranking.order, ranking.engine))
    _check(ordered)
    if isinstance(identity, str):
        identity = read_identity(identity)
    # The usual case: the key of a document is the id it is emitted under.
    plain = identity.parts == ("id",) and not trust_splits(ordered)
    keys, notes = (_emitted_ids(ordered), []) if plain else document_keys(ordered, identity)
    table = _Table(ordered, keys, strategy, _scale(ordered, planned_max_weight, planned_total_weight), notes)
    rows = table.rows() if plain else table.named_rows()
    rows.sort()
    fused = [table.fused(row) for row in rows[:limit]]
    return fused, sorted(table.notes)


def fuse_queries(queries: Sequence[Sequence[Hit]], *, k: float = RRF_K) -> list[Hit]:
    """One engine's answers to several rewritings of one query as one list, by rank fusion; the engine votes once.

    Of several hits with one id the best-ranked is kept, with its own score.
    """
    rankings = [Ranking(engine=str(place), hits=hits, order=place) for place, hits in enumerate(queries)]
    return [fused.copies[0].hit for fused in fuse(rankings, Rrf(k))[0]]


class _Row(NamedTuple):
    """One document to be. Rows sort into the result: ids are unique, so nothing after the id is ever compared."""

    minus_score: float
    minus_weight: float
    id: str
    positions: list[int]
    repeats: Sequence[int] = ()


class _Table:
    """All hits of all engines, flat, in plan order, and where the hits of each document are.

    Every engine's hits stand once per document; ``repeats`` are those it gave again under another id.
    """

    def __init__(
        self,
        rankings: Sequence[Ranking],
        keys: Sequence[Sequence[Hashable]],
        strategy: Strategy,
        scale: Scale,
        notes: list[Note],
    ) -> None:
        self.notes = notes
        self._hits: list[Hit] = []
        self._ranks: list[int] = []
        self._owners: list[Ranking] = []
        self._documents: dict[Hashable, list[int]] = {}
        self._repeats: dict[Hashable, list[int]] = {}
        self._noted_pairs: set[tuple[str, str]] = set()
        repeats: list[tuple[Hashable, int, Ranking, Hit]] = []
        counted = [self._add(ranking, own, repeats) for ranking, own in zip(rankings, keys, strict=True)]
        for key, rank, ranking, hit in repeats:
            self._repeats.setdefault(key, []).append(self._place(ranking, rank, hit))
        self._strategy = strategy
        self._values = self._contributions(counted, scale)
        self._weights = {ranking.engine: twelve_digits(ranking.weight) for ranking in rankings}

    def _add(
        self, ranking: Ranking, keys: Sequence[Hashable], repeats: list[tuple[Hashable, int, Ranking, Hit]]
    ) -> Ranking:
        """Counts the ranking's documents; returns it without its own duplicates."""
        hits = ranking.hits
        if len(set(keys)) < len(keys):
            first: dict[Hashable, tuple[int, Hit]] = {}
            for key, hit in zip(keys, hits, strict=True):
                rank, kept = first.setdefault(key, (len(first) + 1, hit))
                if hit.id != kept.id:
                    repeats.append((key, rank, ranking, hit))
            keys, hits = list(first), [hit for _, hit in first.values()]
            ranking = msgspec.structs.replace(ranking, hits=hits)
        documents = self._documents
        for position, key in enumerate(keys, len(self._hits)):
            if (known := documents.get(key)) is None:
                documents[key] = [position]
            else:
                known.append(position)
        self._hits += hits
        self._ranks += range(1, len(hits) + 1)
        self._owners += [ranking] * len(hits)
        return ranking

    def _place(self, ranking: Ranking, rank: int, hit: Hit) -> int:
        self._hits.append(hit)
        self._ranks.append(rank)
        self._owners.append(ranking)
        return len(self._hits) - 1

    def _contributions(self, counted: Sequence[Ranking], scale: Scale) -> list[float]:
        """Every hit's contribution by position. What a plugin gets wrong stays out of the answer, with a note."""
        per_ranking, notes = self._strategy.contributions(counted, scale)
        self.notes += notes
        values: list[float] = []
        for ranking, own in zip(counted, per_ranking, strict=True):
            if len(own) != len(ranking.hits):
                raise ValueError(f"{self._strategy.name} gave {len(own)} contributions for {len(ranking.hits)} hits")
            if not math.isfinite(sum(own)):
                self._note_not_finite(ranking.engine)
                own = [value if math.isfinite(value) else 0.0 for value in own]
            values += own
        return values

    def _note_not_finite(self, *engines: str) -> None:
        text = f"{self._strategy.name} gave a number that is not finite; counted as 0"
        self.notes.append(Note("not-finite", engines, text))

    def rows(self) -> list[_Row]:
        """The rows of documents whose keys are the ids they are emitted under."""
        return [self._row(str(key), positions) for key, positions in self._documents.items()]

    def named_rows(self) -> list[_Row]:
        """The rows of documents whose ids are their bodies', where equal ids merge.

        Engines of higher trust name their documents first. A copy under an id that they took leaves: to merge would
        undo the separation of trust, to keep both would give one id to two documents.
        """
        by_level: dict[int, list[tuple[list[int], list[int]]]] = {}
        for key, positions in self._documents.items():
            level = max(_configured_level(self._owners[position]) for position in positions)
            by_level.setdefault(level, []).append((positions, self._repeats.get(key, [])))
        taken: dict[str, _Row] = {}
        for level in sorted(by_level, reverse=True):
            named: dict[str, tuple[list[int], list[int]]] = {}
            for positions, repeats in by_level[level]:
                free = [position for position in positions if self._is_free(position, taken)]
                if not free:
                    continue
                ordered = self._by_rank(free)
                id = self._id(ordered[self._body(ordered)])
                into = named.setdefault(id, ([], []))
                into[0].extend(free)
                into[1].extend(repeats)
            for id, (positions, repeats) in named.items():
                votes = self._one_per_engine(positions)
                spare = [position for position in positions if position not in votes]
                taken[id] = self._row(id, votes, sorted({*repeats, *spare}))
        return list(taken.values())

    def _is_free(self, position: int, taken: dict[str, _Row]) -> bool:
        row = taken.get(self._id(position))
        if row is None:
            return True
        engine = self._owners[position].engine
        text = f"{engine} returned ids that belong to documents of more trusted engines; its copies were left out"
        note = Note("id-conflict", (engine,), text)
        if note not in self.notes:
            self.notes.append(note)
        return False

    def _one_per_engine(self, positions: Iterable[int]) -> list[int]:
        best: dict[str, int] = {}
        for position in sorted(positions):  # plan order, and by rank within an engine
            best.setdefault(self._owners[position].engine, position)
        return list(best.values())

    def _row(self, id: str, positions: list[int], repeats: Sequence[int] = ()) -> _Row:
        if len(positions) == 1:
            [position] = positions
            weight = self._weights[self._owners[position].engine]
            return _Row(-twelve_digits(self._values[position]), -weight, id, positions, repeats)
        score = self._strategy.total([self._values[position] for position in positions])
        if not math.isfinite(score):
            self._note_not_finite(*(self._owners[position].engine for position in positions))
            score = 0.0
        weight = math.fsum([self._owners[position].weight for position in positions])
        return _Row(-twelve_digits(score), -twelve_digits(weight), id, positions, repeats)

    def fused(self, row: _Row) -> Fused:
        """The document of a row, with its copies."""
        positions = row.positions
        if len(positions) > 1:
            positions = self._by_rank(positions)
            body, confidence = self._body(positions, row.id), self._confidence(positions)
        else:
            body, confidence = 0, usable_confidence(self._hits[positions[0]])
        ids: Iterable[str] = ()
        if len(positions) > 1 or row.repeats:
            ids = {self._id(position) for position in (*positions, *row.repeats)}
        return Fused(
            id=row.id,
            score=0.0 - row.minus_score,
            weight=-row.minus_weight,
            copies=tuple([self._copy(position) for position in positions]),
            body=body,
            confidence=confidence,
            ids=tuple(sorted(ids)) if len(tuple(ids)) > 1 else (),
            repeats=tuple([self._copy(position) for position in row.repeats]),
        )

    def _by_rank(self, positions: Iterable[int]) -> list[int]:
        """By rank, then plan order, which is the order of positions."""
        return sorted(sorted(positions), key=self._ranks.__getitem__)

    def _id(self, position: int) -> str:
        return qualify(self._owners[position].corpus, self._hits[position].id)

    def _copy(self, position: int) -> Copy:
        owner = self._owners[position]
        return Copy(owner.engine, self._ranks[position], self._hits[position], owner.weight, owner.order, owner.trust)

    def _body(self, positions: Sequence[int], id: str | None = None) -> int:
        """Which of the copies, given by rank, gives the body: the highest trust, then the longest text, then the rank.

        With an ``id`` the texts are also looked at for signs that the copies are no copies.
        """
        hits = [self._hits[position] for position in positions]
        levels = [trust_level(hit, self._owners[at].trust) for hit, at in zip(hits, positions, strict=True)]
        raw = [hit.members.get("text") for hit in hits]
        if raw.count(raw[0]) == len(raw):  # also where still encoded
            return levels.index(max(levels))
        texts = [text_of_hit(hit) or "" for hit in hits]
        if id is not None:
            self._note_strangers([self._owners[position].engine for position in positions], texts, id)
        return max(range(len(hits)), key=lambda place: (levels[place], len(texts[place]), -place))

    def _note_strangers(self, engines: Sequence[str], texts: Sequence[str], id: str) -> None:
        for later in range(1, len(texts)):
            for earlier in range(later):
                one, other = texts[earlier], texts[later]
                low, high = sorted((engines[earlier], engines[later]))
                if not one or not other or one == other or (low, high) in self._noted_pairs:
                    continue
                if strangers(one, other):
                    self._noted_pairs.add((low, high))
                    text = f"{low} and {high} both return {id!r}, with texts that share no word: give each a corpus?"
                    self.notes.append(Note("unlike-texts", (low, high), text))

    def _confidence(self, positions: Sequence[int]) -> float | None:
        """Σ w·c / Σ w over the copies that carry a confidence. Not the score of fusion by confidence."""
        parts = [
            (self._owners[position].weight, confidence)
            for position in positions
            if (confidence := usable_confidence(self._hits[position])) is not None
        ]
        if not parts:
            return None
        mean = math.fsum([w * c for w, c in parts]) / math.fsum([w for w, _ in parts])
        return min(1.0, twelve_digits(mean))


def _check(rankings: Sequence[Ranking]) -> None:
    if len({ranking.engine for ranking in rankings}) < len(rankings):
        raise ValueError("an engine votes once: two rankings of one engine")
    for ranking in rankings:
        if not usable(ranking.weight):
            raise ValueError(f"the weight of {ranking.engine} is not a positive finite number")


def _emitted_ids(rankings: Sequence[Ranking]) -> list[list[Hashable]]:
    return [
        [hit.id for hit in r.hits] if r.corpus is None else [qualify(r.corpus, hit.id) for hit in r.hits]
        for r in rankings
    ]


def _scale(rankings: Sequence[Ranking], max_weight: float | None, total_weight: float | None) -> Scale:
    weights = [ranking.weight for ranking in rankings] or [1.0]
    return Scale(
        max(weights) if max_weight is None else max_weight,
        math.fsum(weights) if total_weight is None else total_weight,
    )


def _configured_level(ranking: Ranking) -> int:
    return TRUST_LEVELS.index(ranking.trust) if ranking.trust in TRUST_LEVELS else 0
