"""Ranked lists in, one ranked list out. Pure: the result depends on the rankings, not on who answered first.

Hits are laid out flat, the first of every engine, then the second of every engine, and are named by their position
there, so that counting touches integers and sorting positions sorts by rank, then by the plan. Copies are only built
for documents that are returned, and members only decoded where engines returned the same document.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import msgspec

from gateway.fusion.identity import Identity, document_keys, qualify, read_identity, trust_splits
from gateway.fusion.merge import configured_level, trust_level
from gateway.fusion.ranking import Copy, Fused, Note, Ranking, Scale, twelve_digits
from gateway.fusion.strategies import RRF_K, Rrf, Strategy, usable_confidence
from gateway.fusion.texts import strangers
from gateway.fusion.weights import usable
from gateway.model import Hit, text_of_hit

__all__ = ["fuse", "fuse_queries"]

_NOTHING = Hit("", None)
"""Fills the places behind the end of a shorter list; no document names them."""


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
    return fused, sorted(set(table.notes))


def fuse_queries(queries: Sequence[Sequence[Hit]], *, k: float = RRF_K) -> list[Hit]:
    """One engine's answers to several rewritings of one query as one list, by rank fusion; the engine votes once.

    Of several hits with one id the best-ranked is kept, with its own score.
    """
    rankings = [Ranking(engine=str(place), hits=hits, order=place) for place, hits in enumerate(queries)]
    return [fused.copies[0].hit for fused in fuse(rankings, Rrf(k))[0]]


Row = tuple[float, float, str, list[int], Sequence[Copy]]
"""One document to be: −score, −weight, id, positions of its copies, its repeats.

Rows sort into the result: ids are unique, so nothing after the id is ever compared.
"""


class _Table:
    """All hits of all engines, each document once per engine, and where the hits of each document are.

    The hit of rank r of the n-th of N engines has the position (r − 1)·N + n. ``repeats`` are hits that an engine gave
    again under another id.
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
        self._strategy = strategy
        self._scale = scale
        self._named = named
        self._noted_pairs: set[tuple[str, str]] = set()
        self._one_trust = len({ranking.trust for ranking in rankings}) == 1
        self._repeats: dict[Hashable, list[Copy]] = {}
        unique = [self._unique(ranking, own) for ranking, own in zip(rankings, keys, strict=True)]
        self._rankings = [ranking for ranking, _ in unique]
        self._origins = [(r.engine, r.weight, r.order, r.trust) for r in rankings]
        self._width = width = len(rankings)
        size = width * max((len(own) for _, own in unique), default=0)
        self._hits: list[Hit] = [_NOTHING] * size
        self._values = [0.0] * size
        self._documents: dict[Hashable, list[int]] = {}
        documents = self._documents
        contributions = self._contributions()
        for place, (ranking, own) in enumerate(unique):
            positions = range(place, place + width * len(own), width)
            self._hits[place : positions.stop : width] = ranking.hits
            self._values[place : positions.stop : width] = contributions[place]
            for key, position in zip(own, positions, strict=True):
                if key in documents:
                    documents[key].append(position)
                else:
                    documents[key] = [position]

    def _unique(self, ranking: Ranking, keys: Sequence[Hashable]) -> tuple[Ranking, Sequence[Hashable]]:
        """The ranking without the engine's own duplicates: each document at its first place."""
        if len(set(keys)) == len(keys):
            return ranking, keys
        first: dict[Hashable, tuple[int, Hit]] = {}
        for key, hit in zip(keys, ranking.hits, strict=True):
            rank, kept = first.setdefault(key, (len(first) + 1, hit))
            if hit.id != kept.id:
                self._repeats.setdefault(key, []).append(_copy(ranking, rank, hit))
        return msgspec.structs.replace(ranking, hits=[hit for _, hit in first.values()]), list(first)

    def _contributions(self) -> list[Sequence[float]]:
        """Every ranking's contributions. What a plugin gets wrong stays out of the answer, with a note."""
        per_ranking, notes = self._strategy.contributions(self._rankings, self._scale)
        self.notes += notes
        checked: list[Sequence[float]] = []
        for ranking, own in zip(self._rankings, per_ranking, strict=True):
            if len(own) != len(ranking.hits):
                raise ValueError(f"{self._strategy.name} gave {len(own)} contributions for {len(ranking.hits)} hits")
            if math.isfinite(sum(own)):
                checked.append(own)
            else:
                self._note_not_finite(ranking.engine)
                checked.append([value if math.isfinite(value) else 0.0 for value in own])
        return checked

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
        weights = {ranking.weight for ranking in self._rankings}
        if len(weights) != 1:
            return [self._row(total, str(key), positions, ()) for total, (key, positions) in found]
        weight = weights.pop()
        sums = [-twelve_digits(weight * count) for count in range(self._width + 1)]
        return [
            (-twelve_digits(total), sums[len(positions)], str(key), positions, ()) for total, (key, positions) in found
        ]

    def named_rows(self) -> list[Row]:
        """The rows of documents whose ids are their bodies', where equal ids merge.

        Engines of higher trust name their documents first. A copy under an id that they took leaves: to merge would
        undo the separation of trust, to keep both would give one id to two documents.
        """
        by_level: dict[int, list[tuple[list[int], list[Copy]]]] = {}
        for key, positions in self._documents.items():
            level = max(configured_level(self._owner(position).trust) for position in positions)
            by_level.setdefault(level, []).append((positions, self._repeats.get(key, [])))
        taken: dict[str, Row] = {}
        barred: set[str] = set()
        for level in sorted(by_level, reverse=True):
            named: dict[str, tuple[list[int], list[Copy]]] = {}
            for positions, repeats in by_level[level]:
                free = sorted(position for position in positions if self._id(position) not in taken)
                barred.update(self._owner(position).engine for position in set(positions).difference(free))
                if free:
                    body, _ = self._merged([self._copy(position) for position in free])
                    into = named.setdefault(self._id(free[body]), ([], []))
                    into[0].extend(free)
                    into[1].extend(repeats)
            for id, (positions, repeats) in named.items():
                votes = self._one_per_engine(positions)
                spare = [self._copy(at) for at in set(positions).difference(votes) if self._id(at) != id]
                spare = sorted([*repeats, *spare], key=lambda copy: (copy.rank, copy.order, copy.hit.id))
                taken[id] = self._row(self._total(votes), id, votes, spare)
        for engine in barred:
            text = f"{engine} returned ids that belong to documents of more trusted engines; its copies were left out"
            self.notes.append(Note("id-conflict", (engine,), text))
        return list(taken.values())

    def _one_per_engine(self, positions: Iterable[int]) -> list[int]:
        best: dict[int, int] = {}
        for position in sorted(positions):
            best.setdefault(position % self._width, position)
        return list(best.values())

    def _total(self, positions: Sequence[int]) -> float:
        values = self._values
        if len(positions) == 1:
            return values[positions[0]]
        total = self._strategy.total([values[position] for position in positions])
        if math.isfinite(total):
            return total
        self._note_not_finite(*(self._owner(position).engine for position in positions))
        return 0.0

    def _row(self, total: float, id: str, positions: list[int], repeats: Sequence[Copy]) -> Row:
        weight = math.fsum([self._owner(position).weight for position in positions])
        return -twelve_digits(total), -twelve_digits(weight), id, positions, repeats

    def fused(self, row: Row) -> Fused:
        """The document of a row, with its copies."""
        minus_score, minus_weight, id, positions, repeats = row
        origins, width, hits = self._origins, self._width, self._hits
        if len(positions) == 1 and not repeats:
            engine, weight, order, trust = origins[positions[0] % width]
            hit = hits[positions[0]]
            copies = (Copy(engine, positions[0] // width + 1, hit, weight, order, trust),)
            confidence = None if hit.confidence is None else usable_confidence(hit)
            return Fused(id=id, score=0.0 - minus_score, weight=-minus_weight, copies=copies, confidence=confidence)
        several = []
        for position in sorted(positions):
            engine, weight, order, trust = origins[position % width]
            several.append(Copy(engine, position // width + 1, hits[position], weight, order, trust))
        body, confidence = self._merged(several, id)
        return Fused(
            id=id,
            score=0.0 - minus_score,  # never −0.0
            weight=-minus_weight,
            copies=tuple(several),
            body=body,
            confidence=confidence,
            ids=self._joined_ids(positions, repeats) if self._named else (),
            repeats=tuple(repeats),
        )

    def _joined_ids(self, positions: Sequence[int], repeats: Sequence[Copy]) -> tuple[str, ...]:
        corpora = {ranking.engine: ranking.corpus for ranking in self._rankings}
        ids = {self._id(position) for position in positions}
        ids.update(qualify(corpora[copy.engine], copy.hit.id) for copy in repeats)
        return tuple(sorted(ids)) if len(ids) > 1 else ()

    def _owner(self, position: int) -> Ranking:
        return self._rankings[position % self._width]

    def _id(self, position: int) -> str:
        return qualify(self._owner(position).corpus, self._hits[position].id)

    def _copy(self, position: int) -> Copy:
        return _copy(self._owner(position), position // self._width + 1, self._hits[position])

    def _merged(self, copies: Sequence[Copy], id: str | None = None) -> tuple[int, float | None]:
        """Which of the copies, given by rank, gives the body, and the confidence they carry together.

        The body: the highest trust, then the longest text, then the rank. With an ``id`` the texts are also looked at
        for signs that the copies are no copies.
        """
        graded, alike, sure = not self._one_trust, True, False
        first = copies[0].hit.members.get("text")
        for copy in copies:
            hit = copy.hit
            members = hit.members
            if hit.confidence is not None:
                sure = True
            if "trust" in members:
                graded = True
            if alike and members.get("text") != first:  # also while still encoded
                alike = False
        confidence = _confidence(copies) if sure else None
        if len(copies) == 1 or (alike and not graded):
            return 0, confidence
        levels = [trust_level(copy.hit, copy.trust) for copy in copies] if graded else [0] * len(copies)
        if alike:
            return levels.index(max(levels)), confidence
        texts = [text_of_hit(copy.hit) or "" for copy in copies]
        body = max(range(len(texts)), key=lambda place: (levels[place], len(texts[place]), -place))
        if id is not None:
            self._note_strangers(copies, texts, body, id)
        return body, confidence

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


def _copy(ranking: Ranking, rank: int, hit: Hit) -> Copy:
    return Copy(ranking.engine, rank, hit, ranking.weight, ranking.order, ranking.trust)


def _confidence(copies: Sequence[Copy]) -> float | None:
    """Σ w·c / Σ w over the copies that carry a confidence. Not the score of fusion by confidence."""
    parts: list[tuple[float, float]] = []
    for copy in copies:
        confidence = usable_confidence(copy.hit)
        if confidence is not None:
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
