"""Ranked lists in, one ranked list out. Pure: the result depends on the rankings, not on who answered first.

Hits are laid out flat and named by their position, so that counting touches integers; copies are only built for
documents that are returned, and members only decoded where engines returned the same document.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import msgspec

from gateway.fusion.identity import Identity, document_keys, qualify, read_identity, trust_splits
from gateway.fusion.merge import trust_level
from gateway.fusion.ranking import TRUST_LEVELS, Copy, Fused, Note, Ranking, Scale, twelve_digits
from gateway.fusion.strategies import RRF_K, Rrf, Strategy
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
    table = _Table(
        ordered, keys, strategy, _scale(ordered, planned_max_weight, planned_total_weight), notes, named=not plain
    )
    rows = table.rows(limit) if plain else table.named_rows()
    rows.sort()
    fused = [table.fused(row) for row in rows[:limit]]
    return fused, sorted(table.notes)


def fuse_queries(queries: Sequence[Sequence[Hit]], *, k: float = RRF_K) -> list[Hit]:
    """One engine's answers to several rewritings of one query as one list, by rank fusion; the engine votes once.

    Of several hits with one id the best-ranked is kept, with its own score.
    """
    rankings = [Ranking(engine=str(place), hits=hits, order=place) for place, hits in enumerate(queries)]
    return [fused.copies[0].hit for fused in fuse(rankings, Rrf(k))[0]]


Row = tuple[float, float, str, list[int], Sequence[int]]
"""One document to be: −score, −weight, id, positions of its copies in plan order, positions of its repeats.

Rows sort into the result: ids are unique, so nothing after the id is ever compared.
"""


class _Table:
    """All hits of all engines, flat, in plan order, and where the hits of each document are.

    Every engine's hits stand once per document; repeats, which it gave again under another id, stand at the end.
    """

    def __init__(
        self,
        rankings: Sequence[Ranking],
        keys: Sequence[Sequence[Hashable]],
        strategy: Strategy,
        scale: Scale,
        notes: list[Note],
        *,
        named: bool,
    ) -> None:
        self.notes = notes
        self._engines = len(rankings)
        self._named = named
        self._strategy = strategy
        self._hits: list[Hit] = []
        self._ranks: list[int] = []
        self._owners: list[Ranking] = []
        self._documents: dict[Hashable, list[int]] = {}
        self._repeats: dict[Hashable, list[int]] = {}
        self._noted_pairs: set[tuple[str, str]] = set()
        weights = {ranking.weight for ranking in rankings}
        self._one_weight = weights.pop() if len(weights) == 1 else None
        self._one_trust = len({ranking.trust for ranking in rankings}) == 1
        repeats: list[tuple[Hashable, int, Ranking, Hit]] = []
        counted = [self._add(ranking, own, repeats) for ranking, own in zip(rankings, keys, strict=True)]
        self._values = self._contributions(counted, scale)
        for key, rank, ranking, hit in repeats:
            self._repeats.setdefault(key, []).append(len(self._hits))
            self._hits.append(hit)
            self._ranks.append(rank)
            self._owners.append(ranking)

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
            if key in documents:
                documents[key].append(position)
            else:
                documents[key] = [position]
        self._hits += hits
        self._ranks += range(1, len(hits) + 1)
        self._owners += [ranking] * len(hits)
        return ranking

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

    def rows(self, limit: int | None) -> list[Row]:
        """The rows of documents whose keys are the ids they are emitted under, at least the best ``limit``."""
        documents = self._documents
        values, at = self._values, self._values.__getitem__
        if type(self._strategy).total is Strategy.total:  # without a call for every document
            totals = [values[p[0]] if len(p) == 1 else math.fsum(map(at, p)) for p in documents.values()]
        else:
            totals = [self._total(positions) for positions in documents.values()]
        found: Iterable[tuple[float, tuple[Hashable, list[int]]]] = zip(totals, documents.items(), strict=True)
        if limit is not None and 0 < limit < len(totals):
            # Rounding moves no total further than this, so nothing below can come among the first.
            bar = sorted(totals, reverse=True)[limit - 1]
            least = bar - abs(bar) * 1e-11
            found = [pair for pair in found if pair[0] >= least]
        return self._rows(found)

    def _rows(self, found: Iterable[tuple[float, tuple[Hashable, list[int]]]]) -> list[Row]:
        if self._one_weight is None:
            return [self._row(total, str(key), positions) for total, (key, positions) in found]
        weights = [-twelve_digits(self._one_weight * count) for count in range(self._engines + 1)]
        return [
            (-twelve_digits(total), weights[len(positions)], str(key), positions, ())
            for total, (key, positions) in found
        ]

    def named_rows(self) -> list[Row]:
        """The rows of documents whose ids are their bodies', where equal ids merge.

        Engines of higher trust name their documents first. A copy under an id that they took leaves: to merge would
        undo the separation of trust, to keep both would give one id to two documents.
        """
        by_level: dict[int, list[tuple[list[int], list[int]]]] = {}
        for key, positions in self._documents.items():
            level = max(_configured_level(self._owners[position]) for position in positions)
            by_level.setdefault(level, []).append((positions, self._repeats.get(key, [])))
        taken: dict[str, Row] = {}
        barred: set[str] = set()
        for level in sorted(by_level, reverse=True):
            named: dict[str, tuple[list[int], list[int]]] = {}
            for positions, repeats in by_level[level]:
                free = [position for position in positions if self._id(position) not in taken]
                barred.update(self._owners[position].engine for position in set(positions).difference(free))
                if free:
                    ordered = self._by_rank(free)
                    body = self._body([self._copy(position) for position in ordered])
                    into = named.setdefault(self._id(ordered[body]), ([], []))
                    into[0].extend(free)
                    into[1].extend(repeats)
            for id, (positions, repeats) in named.items():
                votes = self._one_per_engine(positions)
                spare = sorted({*repeats, *positions}.difference(votes))
                taken[id] = self._row(self._total(votes), id, votes, [at for at in spare if self._id(at) != id])
        for engine in barred:
            text = f"{engine} returned ids that belong to documents of more trusted engines; its copies were left out"
            self.notes.append(Note("id-conflict", (engine,), text))
        return list(taken.values())

    def _one_per_engine(self, positions: Iterable[int]) -> list[int]:
        best: dict[str, int] = {}
        for position in sorted(positions):  # plan order, and by rank within an engine
            best.setdefault(self._owners[position].engine, position)
        return list(best.values())

    def _total(self, positions: Sequence[int]) -> float:
        values = self._values
        if len(positions) == 1:
            return values[positions[0]]
        total = self._strategy.total([values[position] for position in positions])
        if math.isfinite(total):
            return total
        self._note_not_finite(*(self._owners[position].engine for position in positions))
        return 0.0

    def _row(self, total: float, id: str, positions: list[int], repeats: Sequence[int] = ()) -> Row:
        owners = self._owners
        weight = math.fsum([owners[position].weight for position in positions])
        return -twelve_digits(total), -twelve_digits(weight), id, positions, repeats

    def fused(self, row: Row) -> Fused:
        """The document of a row, with its copies."""
        minus_score, minus_weight, id, positions, repeats = row
        score = 0.0 - minus_score  # never −0.0
        hits, ranks, owners = self._hits, self._ranks, self._owners
        if len(positions) > 1:
            positions = self._by_rank(positions)
        copies: list[Copy] = []
        for position in positions:
            owner = owners[position]
            rank, hit = ranks[position], hits[position]
            copies.append(Copy(owner.engine, rank, hit, owner.weight, owner.order, owner.trust))
        ids: Sequence[str] = ()
        if self._named:
            ids = sorted({self._id(position) for position in (*positions, *repeats)})
        return Fused(
            id=id,
            score=score,
            weight=-minus_weight,
            copies=tuple(copies),
            body=self._body(copies, id) if len(copies) > 1 else 0,
            confidence=_confidence(copies),
            ids=tuple(ids) if len(ids) > 1 else (),
            repeats=tuple([self._copy(position) for position in repeats]) if repeats else (),
        )

    def _by_rank(self, positions: list[int]) -> list[int]:
        """Positions, which come in plan order, by rank and then in that order."""
        return sorted(positions, key=self._ranks.__getitem__) if len(positions) > 1 else positions

    def _id(self, position: int) -> str:
        return qualify(self._owners[position].corpus, self._hits[position].id)

    def _copy(self, position: int) -> Copy:
        owner = self._owners[position]
        return Copy(owner.engine, self._ranks[position], self._hits[position], owner.weight, owner.order, owner.trust)

    def _body(self, copies: Sequence[Copy], id: str | None = None) -> int:
        """Which of the copies, given by rank, gives the body: the highest trust, then the longest text, then the rank.

        With an ``id`` the texts are also looked at for signs that the copies are no copies.
        """
        if len(copies) == 1:
            return 0
        graded, alike = not self._one_trust, True
        first = copies[0].hit.members.get("text")
        for copy in copies:
            members = copy.hit.members
            if "trust" in members:
                graded = True
            if alike and members.get("text") != first:  # also while still encoded
                alike = False
        levels = [trust_level(copy.hit, copy.trust) for copy in copies] if graded else [0] * len(copies)
        if alike:
            return levels.index(max(levels))
        texts = [text_of_hit(copy.hit) or "" for copy in copies]
        body = max(range(len(texts)), key=lambda place: (levels[place], len(texts[place]), -place))
        if id is not None:
            self._note_strangers(copies, texts, body, id)
        return body

    def _note_strangers(self, copies: Sequence[Copy], texts: Sequence[str], body: int, id: str) -> None:
        """One note for a pair of engines, of which one gave the body and the other a text that has nothing of it."""
        for copy, text in zip(copies, texts, strict=True):
            if not strangers(text, texts[body]):
                continue
            low, high = sorted((copy.engine, copies[body].engine))
            if (low, high) not in self._noted_pairs:
                self._noted_pairs.add((low, high))
                said = f"{low} and {high} both return {id!r}, with texts that share no word: give each a corpus?"
                self.notes.append(Note("unlike-texts", (low, high), said))


def _confidence(copies: Sequence[Copy]) -> float | None:
    """Σ w·c / Σ w over the copies that carry a confidence. Not the score of fusion by confidence."""
    parts: list[tuple[float, float]] = []
    for copy in copies:
        confidence = copy.hit.confidence
        if confidence is not None and 0 <= confidence <= 1:
            parts.append((copy.weight, confidence))
    if len(parts) < 2:
        return parts[0][1] if parts else None
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
