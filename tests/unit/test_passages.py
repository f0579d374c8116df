"""Files become passages whose ids, sizes and places can be relied on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cutting import TARGET, _size, split
from gateway.frontmatter import read_front_matter
from gateway.model import Document
from gateway.passages import Skipped, read_passages

GUIDE = """---
title: ignored: front matter
---

# Guide

A short word before the parts.

## Install

Run the *one* command:

```sh
# not a heading

make install
```

## Use

Ask `it` anything.

Setext
------

Underlined headings count as well.
"""


def titles(text: str, **options: bool) -> list[str]:
    return [passage.title for passage in split(text, **options)]


def texts(text: str, **options: bool | int) -> list[str]:
    return [text[passage.start : passage.end] for passage in split(text, **options)]  # type: ignore[arg-type]


def read(root: Path, *paths: Path) -> tuple[list[Document], list[Skipped]]:
    skipped: list[Skipped] = []
    return list(read_passages(paths or [root], root, skipped=skipped.append)), skipped


def words(count: int, sentence: int = 12) -> str:
    return " ".join(f"word{n}" + ("." if n % sentence == sentence - 1 else "") for n in range(count))


def test_headings_begin_passages_and_titles_are_the_chain_of_headings() -> None:
    long = GUIDE.replace("Run the", words(60) + "\n\nRun the").replace("Ask", words(60) + " Ask")
    assert titles(long) == ["Guide › Install", "Guide › Use", "Guide › Setext"]
    assert texts(long)[1].startswith("## Use\n\nword0")


def test_a_heading_with_little_under_it_joins_the_part_that_follows() -> None:
    first = texts("# Guide\n\n## Install\n\nRun it.\n\n## Use\n\nAsk it.\n")
    assert first == ["# Guide\n\n## Install\n\nRun it.", "## Use\n\nAsk it."]
    assert titles("# Guide\n\n## Install\n\nRun it.\n\n## Use\n\nAsk it.\n") == ["Guide › Install", "Guide › Use"]


def test_front_matter_is_left_out_but_a_rule_at_the_top_is_not_front_matter() -> None:
    assert all("ignored" not in text for text in texts(GUIDE))
    assert "kept" in "".join(texts("---\n\nkept\n\n---\n\nalso kept\n"))
    assert texts('+++\ntitle = "x"\n+++\nbody\n') == ["body"]


def test_a_hash_inside_a_fence_is_no_heading_and_the_fence_stays_whole() -> None:
    [passage] = [text for text in texts(GUIDE) if "```" in text]
    assert passage.count("```") == 2
    assert "# not a heading" in passage
    code = "```\n" + "\n\n".join(words(20) for _ in range(12)) + "\n```"
    assert code in texts(f"# T\n\n{words(170)}\n\n{code}\n\n{words(100)}\n")


def test_a_fence_that_is_never_closed_runs_to_the_end() -> None:
    assert titles("# A\n\n````\n```\n# B\n") == ["A"]


def test_plain_text_has_no_headings() -> None:
    assert titles("# A\n\ntext\n", markdown=False) == [""]


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# *Bold* [link](http://x) `code` ##", "Bold link code"),
        ("# C#", "C#"),
        ("# snake_case", "snake_case"),
        ("###### deep", "deep"),
    ],
)
def test_titles_are_read_without_their_markup(line: str, title: str) -> None:
    assert titles(f"{line}\n\ntext\n") == [title]


@pytest.mark.parametrize("line", ["#hashtag", "####### seven", "    # indented", "\\# escaped"])
def test_what_only_looks_like_a_heading_is_text(line: str) -> None:
    assert titles(f"{line}\n\ntext\n") == [""]


def test_long_sections_are_cut_near_the_target_at_the_ends_of_sentences() -> None:
    pieces = texts(words(2000))
    assert len(pieces) > 8
    assert all(TARGET * 0.9 < _size(piece) < TARGET * 1.1 for piece in pieces)
    assert all(piece.endswith(".") for piece in pieces[:-1])


def test_chinese_is_cut_at_its_own_full_stops() -> None:
    pieces = texts("这是一个关于检索系统的句子。" * 200)
    assert len(pieces) > 4
    assert all(piece.endswith("。") for piece in pieces)


@given(
    st.lists(
        st.sampled_from(
            [
                "# a",
                "## b ",
                "#",
                "text. more",
                "```",
                "~~~~",
                "---",
                "===",
                "",
                " ",
                "\t",
                "\x0c",
                "東京都",
                "- i",
                "x" * 4000,
                words(250),
                "w " * 900,
                "\u2028",
                "😀",
                "[[[(",
                "***",
                "| a |",
                "+++",
                "title: x",
            ]
        ),
        max_size=14,
    ).map("\n".join)
    | st.text(max_size=300),
    st.booleans(),
)
def test_passages_are_ordered_bounded_and_lose_nothing(text: str, markdown: bool) -> None:
    passages = split(text, markdown=markdown)
    position = 0
    missing = ""
    for passage in passages:
        assert position <= passage.start < passage.end <= len(text)
        assert _size(text[passage.start : passage.end]) <= 2 * TARGET
        missing += text[position : passage.start]
        position = passage.end
    missing += text[position:]
    if not (markdown and text.startswith(("---", "+++"))):
        assert not missing.strip()
    assert split(text, markdown=markdown) == passages


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "line",
    ["[" * 200_000, "#" + " " * 200_000 + "x", "." * 200_000, "`" * 200_000 + "x", "--- " * 50_000, '."' * 100_000],
)
def test_hostile_files_take_no_longer_than_others(line: str) -> None:
    split(f"{line}\n\n# {line}\n")


def test_ids_are_the_path_below_the_base_and_the_number(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("# B\n\n" + words(450))
    (tmp_path / "docs" / "a.txt").write_text("plain")
    documents, skipped = read(tmp_path)
    assert [document.id for document in documents] == ["docs/a.txt#0", "docs/b.md#0", "docs/b.md#1", "docs/b.md#2"]
    assert [document.meta and document.meta["passage"] for document in documents] == [0, 0, 1, 2]
    assert skipped == []
    assert [document.id for document in read(tmp_path, tmp_path / "docs" / "b.md", tmp_path)[0]][:1] == ["docs/b.md#0"]


def test_the_metadata_says_where_the_text_stands_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(GUIDE.replace("\n", "\r\n").encode())
    for document in read(tmp_path)[0]:
        meta = document.meta or {}
        assert document.text == GUIDE[meta["start"] : meta["end"]]
        assert meta["path"] == "a.md"
        assert meta["title"].startswith("Guide")


def test_a_file_without_headings_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some text")
    assert read(tmp_path)[0][0].meta == {"path": "notes.txt", "title": "notes", "passage": 0, "start": 0, "end": 9}


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text")
    assert len(read(tmp_path, tmp_path, tmp_path / "a.md", tmp_path)[0]) == 1


def test_what_gives_no_passages_is_told_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "a.bin.md").write_bytes(b"text\0more")
    (tmp_path / "b.png").write_bytes(b"\x89PNG")
    (tmp_path / "c.md").write_text(" \n\n")
    (tmp_path / "d.md").symlink_to(tmp_path / "c.md")
    documents, skipped = read(tmp_path, tmp_path, tmp_path / "gone")
    assert documents == []
    assert {skip.path.name: skip.reason for skip in skipped} == {
        "a.bin.md": "a binary file",
        "b.png": "not a Markdown or text file",
        "c.md": "holds no text",
        "d.md": "a symbolic link",
        "gone": "does not exist",
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("secret")
    (tmp_path / "a.md").chmod(0)
    (tmp_path / "b.md").write_text("open")
    documents, skipped = read(tmp_path)
    assert [document.text for document in documents] == ["open"]
    assert skipped[0].reason.startswith("cannot be read")


def test_hidden_folders_and_those_of_tools_are_passed_over(tmp_path: Path) -> None:
    for name in (".git", ".venv", "node_modules", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text("text")
    (tmp_path / ".hidden.md").write_text("text")
    assert [document.id for document in read(tmp_path)[0]] == ["kept/a.md#0"]


def test_a_file_that_is_named_is_read_whatever_its_ending(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("# comment, no heading")
    documents, _ = read(tmp_path, tmp_path / "main.py")
    assert [(document.id, document.meta and document.meta["title"]) for document in documents] == [
        ("main.py#0", "main")
    ]


def test_bytes_that_are_no_utf8_are_replaced_and_marks_of_byte_order_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 noir")
    (tmp_path / "b.txt").write_bytes("\ufeffmarked".encode())
    (tmp_path / "c.txt").write_bytes("wide".encode("utf-16"))
    assert [document.text for document in read(tmp_path)[0]] == ["caf\ufffd noir", "marked", "wide"]


def test_a_file_outside_the_base_still_has_a_stable_id(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "a.md").write_text("text")
    assert [document.id for document in read_passages([tmp_path / "a.md"], tmp_path / "base")] == ["../a.md#0"]


def front(tmp_path: Path, text: str) -> dict[str, object]:
    """What the first passage's metadata says beyond its place."""
    (tmp_path / "a.md").write_text(text)
    document = next(iter(read_passages([tmp_path / "a.md"], tmp_path)))
    return {name: value for name, value in (document.meta or {}).items() if name in ("title", "date", "tags")}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("---\ntitle: Rank\ndate: 2024-05-01\ntags: [a, b, a]\n---", ("Rank", "2024-05-01T00:00:00Z", ["a", "b"])),
        ("---\ntags: one, two\ndate: 2024-05-01 10:30\n---", ("a", "2024-05-01T10:30:00Z", ["one", "two"])),
        ("---\ntags:\n  - x\ndate: 2024-05-01T10:30:00+02:00\n---", ("a", "2024-05-01T10:30:00+02:00", ["x"])),
        ('+++\ntitle = "T"\ndate = 2024-05-01T10:30:00Z\ntags = ["x"]\n+++', ("T", "2024-05-01T10:30:00+00:00", ["x"])),
        ("+++\ndate = 2024-05-01\n+++", ("a", "2024-05-01T00:00:00Z", None)),
        ("---\ntitle: [not, text]\ndate: soon\ntags: {a: b}\n---", ("a", None, None)),
        ("---\ntitle: two: colons\n---", ("a", None, None)),
        ("---\ntitle: a\npath: elsewhere\npassage: 9\n---", ("a", None, None)),
        ("---\ntitle: " + "x" * 20_000 + "\n---", ("a", None, None)),
    ],
)  # fmt: skip
def test_front_matter_gives_title_date_and_tags_or_nothing(
    tmp_path: Path, block: str, expected: tuple[str, str | None, list[str] | None]
) -> None:
    title, date, tags = expected
    given = {"title": title, "date": date, "tags": tags}
    assert front(tmp_path, f"{block}\ntext\n") == {name: value for name, value in given.items() if value}


def test_a_heading_is_a_better_title_than_that_of_the_front_matter(tmp_path: Path) -> None:
    assert front(tmp_path, "---\ntitle: file\n---\n# Heading\n\ntext\n")["title"] == "Heading"


def test_front_matter_cannot_say_where_a_passage_stands(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\npath: /etc\nstart: 99\n---\ntext\n")
    (document,) = read_passages([tmp_path / "a.md"], tmp_path)
    assert document.id == "a.md#0"
    assert (document.meta or {})["path"] == "a.md"
    assert set(document.meta or {}) == {"path", "title", "passage", "start", "end"}


def test_plain_text_has_no_front_matter(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("---\ntitle: T\n---\ntext\n")
    (document,) = read_passages([tmp_path / "a.txt"], tmp_path)
    assert (document.meta or {})["title"] == "a"


@given(block=st.text(max_size=200))
def test_no_front_matter_raises(block: str) -> None:
    for fence in ("---", "+++"):
        assert set(read_front_matter(f"{fence}\n{block}\n{fence}\n")) <= {"title", "date", "tags"}
