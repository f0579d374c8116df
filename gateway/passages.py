"""Markdown and text files as passages with stable ids, for ``add`` and the sample.

A file's passages are numbered from 0 and called ``path#number``, with the path relative to a base folder and written
with forward slashes. Cutting depends on the file's text alone, so that every engine that was fed from the same folder
holds the same ids, and fusion meets.

A passage is a slice of the file as it stands: ``meta["start"]`` and ``meta["end"]`` are its place, in characters after
line ends became ``\\n``. What the metadata means is told in :mod:`gateway.spi.passage`; a Markdown file's front matter
adds ``date``, ``tags`` and the title of passages under no heading.
"""

from __future__ import annotations

import codecs
import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.cutting import TARGET, front_matter, split
from gateway.frontmatter import read_front_matter
from gateway.model import Document
from gateway.spi.codec import mend
from gateway.spi.passage import passage_id

__all__ = ["Skipped", "read_passages"]

MARKDOWN = frozenset({".md", ".markdown", ".mdown", ".mkd"})
PLAIN = frozenset({".txt", ".text", ".rst"})
NAMED = frozenset({"README", "LICENSE", "NOTICE", "CHANGELOG", "CHANGES", "CONTRIBUTING", "AUTHORS"})
LEFT_OUT = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})
"""Folders that hold no text of the user's own; those whose name begins with a dot are left out as well."""

FILE_LIMIT = 32 * 1024 * 1024
"""Bytes; a longer file is no text that anybody wrote."""


class Skipped(NamedTuple):
    """A file (or folder) that gave no passages, and why."""

    path: Path
    reason: str


def read_passages(
    paths: Sequence[Path], base: Path, *, skipped: Callable[[Skipped], None] = lambda skip: None, target: int = TARGET
) -> Iterator[Document]:
    """The passages of the files and folders, folders in sorted order; a file that is named twice is read once.

    ``base`` is the folder that ids are relative to. A path that gives nothing is told to ``skipped``: a binary file, an
    unreadable one, one of another type. Bytes that are not UTF-8 are replaced, never an error. Hidden files and the
    folders of version control and package managers are passed over in silence, unless they are named themselves.
    """
    seen: set[str] = set()
    for path, named in _files(paths, skipped):
        name = _relative(path, base)
        if name in seen:
            continue
        seen.add(name)
        if not named and not _supported(path):
            skipped(Skipped(path, "not a Markdown or text file"))
            continue
        text = _read(path, skipped)
        if text is None:
            continue
        number = -1
        markdown = path.suffix.lower() in MARKDOWN
        told = read_front_matter(front_matter(text)) if markdown else {}
        for number, passage in enumerate(split(text, markdown=markdown, target=target)):
            yield Document(
                id=passage_id(name, number),
                text=text[passage.start : passage.end],
                meta={
                    **told,
                    "path": name,
                    "title": passage.title or told.get("title") or path.stem,
                    "passage": number,
                    "start": passage.start,
                    "end": passage.end,
                },
            )
        if number < 0:
            skipped(Skipped(path, "holds no text"))


def _files(paths: Sequence[Path], skipped: Callable[[Skipped], None]) -> Iterator[tuple[Path, bool]]:
    """Files in order; the flag says that the file was named itself, not found in a folder."""
    for path in paths:
        if path.is_dir():
            for folder, folders, names in os.walk(path, onerror=lambda error: skipped(_unreadable(error))):
                folders[:] = sorted(name for name in folders if not _left_out(name))
                for name in sorted(names):
                    found = Path(folder, name)
                    if name.startswith("."):
                        continue
                    if found.is_symlink():
                        # It may lead out of the folder that the user gave, or round in a circle.
                        skipped(Skipped(found, "a symbolic link"))
                    else:
                        yield found, False
        elif path.exists():
            yield path, True
        else:
            skipped(Skipped(path, "does not exist"))


def _left_out(name: str) -> bool:
    return name.startswith(".") or name in LEFT_OUT


def _supported(path: Path) -> bool:
    suffix = path.suffix.lower()
    return suffix in MARKDOWN or suffix in PLAIN or path.name in NAMED


def _relative(path: Path, base: Path) -> str:
    relative = os.path.relpath(path.absolute(), base.absolute())
    # One spelling: file systems disagree on composed letters, and names need not be UTF-8.
    return unicodedata.normalize("NFC", mend(Path(relative).as_posix()))


def _unreadable(error: OSError) -> Skipped:
    return Skipped(Path(os.fsdecode(error.filename or "")), f"cannot be read: {error.strerror}")


def _read(path: Path, skipped: Callable[[Skipped], None]) -> str | None:
    try:
        if not path.is_file():
            skipped(Skipped(path, "not a regular file"))
            return None
        if path.stat().st_size > FILE_LIMIT:
            skipped(Skipped(path, f"longer than {FILE_LIMIT // 1024 // 1024} MiB"))
            return None
        data = path.read_bytes()
    except OSError as error:
        skipped(_unreadable(error))
        return None
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in data:
        skipped(Skipped(path, "a binary file"))
        return None
    return data.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")
