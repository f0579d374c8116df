"""Texts cut into passages. Pure: the same text gives the same passages, whoever cuts it.

Cuts are made at headings, then between paragraphs, then between sentences, then anywhere. ``add`` cuts files up with
this, and ``index/add`` documents, so that both give a document the same passages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["TARGET", "Passage", "front_matter", "split"]

TARGET = 180
"""The size of a passage to aim at, in words (see :func:`_size`); twice that is never exceeded."""

# No pattern here may backtrack over a line: files are as hostile as their authors.
_FRONT_MATTER = re.compile(
    r"\A(---|\+\+\+)[ \t]*\n(?:[\w\"'#-][^\n]*[:=#][^\n]*\n(?:[^\n]*\n){0,300}?)?\1[ \t]*(?:\n|\Z)"
)
_HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t\n]|\Z)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*\n?\Z")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*\Z)|~{3,})")
_SENTENCE = re.compile(r"(?<=[.!?…؟।])[\"'”’)\]]*\s+|(?<=[。！？])")
_LINE = re.compile(r"\n")
_SPACE = re.compile(r"\s+")
_PROSE = (_SENTENCE, _LINE, _SPACE)
_CODE = (_LINE, _SPACE)
_DENSE = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")
_MARKUP = re.compile(r"[*`]+|\[([^\]]*)\]\([^)]*\)")
_TITLE_LIMIT = 200


class Passage(NamedTuple):
    """A slice of a text. ``title`` is the chain of headings it stands under, ``""`` if there is none."""

    start: int
    end: int
    title: str


def split(text: str, *, markdown: bool = True, target: int = TARGET) -> list[Passage]:
    """The text as passages in order, not overlapping: all of it but blank space and front matter.

    ``target`` is the size to aim at, in words; no passage is larger than twice that.
    """
    start = len(front_matter(text)) if markdown else 0
    return [
        Passage(begin, end, " › ".join(section.titles))
        for section in _merged(_sections(text, start, markdown), target)
        for begin, end in _packed(text, section, target)
    ]


def front_matter(text: str) -> str:
    """What stands above a Markdown text, with the lines ``---`` or ``+++`` around it; ``""`` if there is nothing."""
    found = _FRONT_MATTER.match(text)
    return found[0] if found else ""


class _Block(NamedTuple):
    """A heading (then with level and title), a fence of code or a paragraph."""

    start: int
    end: int
    heading: tuple[int, str] | None = None
    code: bool = False


@dataclass(slots=True)
class _Section:
    """A heading and what stands under it, up to the next heading; ``body`` is false if nothing does."""

    titles: tuple[str, ...]
    blocks: list[_Block] = field(default_factory=list)
    size: int = 0
    body: bool = False


def _sections(text: str, start: int, markdown: bool) -> list[_Section]:
    chain: list[tuple[int, str]] = []
    sections = [_Section(())]
    for block in _blocks(text, start, markdown):
        if block.heading:
            chain = [*(above for above in chain if above[0] < block.heading[0]), block.heading]
            sections.append(_Section(tuple(title for _, title in chain if title)))
        section = sections[-1]
        section.blocks.append(block)
        section.size += _size(text[block.start : block.end])
        section.body = section.body or not block.heading
    return [section for section in sections if section.blocks]


def _blocks(text: str, start: int, markdown: bool) -> Iterator[_Block]:
    """The blocks in order, without the blank lines between them (CommonMark 0.31, as far as cutting needs it)."""
    opened = -1  # where the current paragraph or fence began
    fence = ""
    for begin, end in _spans(text, start, len(text), _LINE):
        line = text[begin:end]
        if fence:
            closing = line.strip()
            if closing.startswith(fence) and not closing.strip(fence[0]):
                yield _Block(opened, end, code=True)
                opened, fence = -1, ""
            continue
        heading = _HEADING.match(line) if markdown else None
        mark = _FENCE.match(line) if markdown else None
        if markdown and opened >= 0 and _UNDERLINE.match(line) and text.find("\n", opened) + 1 == begin:
            yield _Block(opened, end, (1 if "=" in line else 2, _title(text[opened:begin])))
            opened = -1
        elif heading or mark or not line.strip():
            if opened >= 0:
                yield _Block(opened, begin)
            opened = -1
            if heading:
                yield _Block(begin, end, (len(heading[1]), _title(line[heading.end() :])))
            elif mark:
                opened, fence = begin, mark[1]
        elif opened < 0:
            opened = begin
    if opened >= 0:
        yield _Block(opened, len(text), code=bool(fence))


def _title(line: str) -> str:
    title = line.strip()
    bare = title.rstrip("#")  # the closing sequence of "## Title ##", but not the end of "C#"
    if bare != title and (not bare or bare[-1] in " \t"):
        title = bare
    return " ".join(_MARKUP.sub(r"\1", title[:_TITLE_LIMIT]).split())


def _merged(sections: list[_Section], target: int) -> list[_Section]:
    """Joins a heading that has little under it with the subsection that follows, where both fit into one passage."""
    merged: list[_Section] = []
    for section in sections:
        last = merged[-1] if merged else None
        if (
            last is not None
            and (not last.body or last.size < target // 4)
            and section.titles[: len(last.titles)] == last.titles
            and (not last.body or last.size + section.size <= target)
        ):
            # The title of what is most of the passage.
            last.titles = section.titles if section.size > last.size else last.titles
            last.blocks += section.blocks
            last.size += section.size
            last.body = last.body or section.body
        else:
            merged.append(section)
    return merged


def _packed(text: str, section: _Section, target: int) -> Iterator[tuple[int, int]]:
    """The section's blocks, gathered into slices near the target; a small rest joins the slice before it."""
    packs: list[tuple[int, int]] = []
    for block in section.blocks:
        for start, end in _pieces(text, block.start, block.end, 2 * target, _CODE if block.code else _PROSE):
            joined = _size(text[packs[-1][0] : end]) if packs else 0
            small = packs and _size(text[slice(*packs[-1])]) < target // 6
            if packs and (joined <= target or (small and joined <= 2 * target)):
                packs[-1] = (packs[-1][0], end)
            else:
                packs.append((start, end))
    if len(packs) > 1 and _size(text[slice(*packs[-1])]) < target // 4:
        joined = _size(text[packs[-2][0] : packs[-1][1]])
        if joined <= 2 * target:
            packs[-2:] = [(packs[-2][0], packs[-1][1])]
    for start, end in packs:
        piece = text[start:end]
        start += len(piece) - len(piece.lstrip("\n"))
        end -= len(piece) - len(piece.rstrip())
        if end > start:
            yield start, end


def _pieces(text: str, start: int, end: int, limit: int, cuts: Sequence[re.Pattern[str]]) -> Iterator[tuple[int, int]]:
    """The slice if it is within the limit, else runs of its sentences, lines or words, whichever are small enough."""
    if _size(text[start:end]) <= limit:
        yield start, end
        return
    if not cuts:
        # No character counts for more than one, so this many are within the limit whatever they are.
        for begin in range(start, end, limit):
            yield begin, min(begin + limit, end)
        return
    run, size = start, 0
    for begin, stop in _spans(text, start, end, cuts[0]):
        add = _size(text[begin:stop])
        if size and size + add > limit // 2:
            yield run, begin
            run, size = begin, 0
        if add > limit:
            yield from _pieces(text, begin, stop, limit, cuts[1:])
            run, size = stop, 0
        else:
            size += add
    if run < end:
        yield run, end


def _spans(text: str, start: int, end: int, cut: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """The parts of the slice that end where ``cut`` matches, which is part of them."""
    for match in cut.finditer(text, start, end):
        if match.end() > start:
            yield start, match.end()
            start = match.end()
    if start < end:
        yield start, end


def _size(text: str) -> int:
    """Words, or what counts as one: 8 characters without a space, 2 of a script that writes none."""
    dense = 0 if text.isascii() else len(_DENSE.findall(text))
    return max(len(text.split()), len(text) // 8) + dense // 2
