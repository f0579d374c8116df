"""Counting tokens, with a vocabulary and without."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.refine.tokens import Estimate, Tokens, exact, sizes

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def real() -> Tokens:
    """The tokenizer that the wordllama wheel ships: Llama's, of 32,000 tokens."""
    pytest.importorskip("tokenizers")
    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("wordllama is not installed")
    return exact(Path(next(iter(spec.submodule_search_locations)), "tokenizers", "l2_supercat_tokenizer_config.json"))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("   ", 1),
        ("four", 1),
        ("fives", 2),
        ("retrieval of passages", 3 + 1 + 2),
        ("a, b.", 4),
        ("in 2024\n", 1 + 4 + 1),
        ("été", 1 + 1 + 1),
        ("постановление", 7),
        ("東京", 4),
        ("\U0001f44d", 4),
        ("\ud800", 2),
        ("a 東", 1 + 1 + 2),
    ],
)
def test_without_a_vocabulary_letters_are_counted(text: str, tokens: int) -> None:
    assert Estimate().count(text) == tokens


def test_texts_put_together_cost_no_more_than_apart() -> None:
    one, other = "The quick brown fox", "jumps over the lazy dog."
    assert Estimate().count(f"{one} {other}") == Estimate().count(one) + Estimate().count(other)


@pytest.mark.parametrize(
    "name", ["README.md", "docs/filters.md", "docs/federation.md", "gateway/refine/seal.py", "gateway.yaml"]
)
def test_prose_and_code_are_counted_as_somewhat_more_than_they_are(real: Tokens, name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    paragraphs = [part for part in text.split("\n\n") if len(part) > 200]
    assert len(paragraphs) >= 1
    assert 1.0 <= Estimate().count(text) / real.count(text) <= 1.5
    for paragraph in paragraphs:
        assert 0.85 <= Estimate().count(paragraph) / real.count(paragraph) <= 1.8, paragraph


@pytest.mark.parametrize(
    "text",
    [
        "検索拡張生成システムは、ミリ秒単位で結果を返す必要があります。",
        "检索增强生成系统需要在毫秒级别内返回结果,同时保证结果的多样性和时效性。",
        "검색 증강 생성 시스템은 밀리초 단위로 결과를 반환해야 합니다.",
        "Правительство Российской Федерации утвердило постановление о порядке регистрации транспортных средств.",
        "Die Verordnung über die Zulassung von Kraftfahrzeugen wird im Jahr 2024 geändert.",
    ],
)
def test_other_languages_are_not_counted_as_less_than_they_are(real: Tokens, text: str) -> None:
    assert 0.95 <= Estimate().count(text) / real.count(text) <= 2.1


def test_a_vocabulary_on_disk_counts_exactly_and_is_not_cut_short(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "the": 1, "fox": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(max_length=4)
    made.enable_padding(length=4)
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    counter = exact(path)
    assert counter.count("the fox " * 50) == 100
    assert counter.count("fox") == 1
    assert counter.count("") == 0
    assert counter.count("the \ud800 fox") == 3


@pytest.mark.parametrize("content", [None, "{", json.dumps({"version": "1.0"})])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: str | None) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content, "utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not a tokenizer that can be read"):
        exact(path)


@pytest.mark.anyio
@pytest.mark.parametrize("times", [1, 20_000])
async def test_texts_are_counted_one_by_one_however_long(times: int) -> None:
    assert await sizes(Estimate(), ["fox " * times, "", "a fox"]) == (times, 0, 2)
    assert await sizes(Estimate(), []) == ()


@pytest.mark.anyio
async def test_a_text_far_beyond_the_budget_is_counted_until_that_is_certain() -> None:
    counted: list[int] = []

    class Words:
        def count(self, text: str) -> int:
            counted.append(len(text))
            return len(text.split())

    found = await sizes(Words(), ["fox " * 100_000, " " * 400_000, "a fox"], 100)
    assert found[0] > 100
    assert found[1:] == (0, 2)  # a text that is long and no tokens is read to its end
    assert counted == [20_000, 20_000, 400_000, 5]


@pytest.mark.anyio
async def test_measuring_ends_with_its_time_and_gives_the_first_sizes() -> None:
    assert await sizes(Estimate(), ["fox"] * 9, 100, 0.0) == ()
    found = await sizes(Estimate(), ["fox " * 10_000] * 3_000, None, 0.05)
    assert 0 < len(found) < 3_000
    assert set(found) == {10_000}
