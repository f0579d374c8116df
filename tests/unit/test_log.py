"""Logging for operators: one line per message, and no credential in any."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from gateway.telemetry.log import configure_logging, redact


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, gateway = logging.getLogger(), logging.getLogger("gateway")
    before = root.handlers[:], root.level, gateway.level
    yield
    root.handlers[:], root.level, gateway.level = before


@pytest.mark.parametrize(
    "text",
    [
        "http://u:SECRET@127.0.0.1:1/x?api_key=SECRET refused",
        "http://u:p@SECRET@host/x",
        "https://host/path?x=1&key=SECRET#f",
        "postgres://admin:SECRET@db:5432/x",
        "Authorization: Bearer SECRETSECRET",
        "authorization: Basic SECRETSECRET=",
        "Proxy-Authorization: Basic SECRETSECRET=",
        "{'api-key': 'SECRET', 'x': 1}",
        '{"X-Api-Key": "SECRET"}',
        "headers: {'Authorization': 'Bearer SECRETSECRET'}",
        "api_key=SECRET,",
        "access_token = SECRET",
        "client_secret: SECRET;",
        "password=SECRET",
        "sent bearer SECRETSECRET along",
    ],
)
def test_a_credential_is_masked_wherever_it_usually_stands(text: str) -> None:
    assert "SECRET" not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "engine a is open",
        "http://127.0.0.1:8787/rcp cannot be reached",
        "the field year has different types (int in a; float in b)",
        "tokens: 12 of 180 words",
        "Is this a question? Yes.",
        "mail bob@example.org",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def written(capsys: pytest.CaptureFixture[str], format: str, level: str = "info") -> tuple[logging.Logger, object]:
    configure_logging(level, format)  # type: ignore[arg-type]
    return logging.getLogger("gateway.test"), capsys


def test_a_message_is_one_line_whatever_an_engine_put_into_it(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    logging.getLogger("gateway.test").info("a\nforged %s", "\x1b[31mred\r\x9b\u2028")
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert not set(err) & set("\x1b\r\x9b\u2028")


def test_a_traceback_is_kept_and_masked(capsys: pytest.CaptureFixture[str]) -> None:
    for format in ("text", "json"):
        configure_logging("info", format)  # type: ignore[arg-type]
        try:
            raise ValueError("http://u:SECRET@h/?k=SECRET")
        except ValueError:
            logging.getLogger("gateway.test").exception("failed")
        err = capsys.readouterr().err
        assert "Traceback" in err
        assert "SECRET" not in err


def test_json_is_one_object_to_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug", "json")
    logging.getLogger("gateway.test").debug("größe %d\n\x1b", 5)
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry.keys() == {"time", "level", "logger", "message"}
    assert (entry["level"], entry["logger"], entry["message"]) == ("debug", "gateway.test", "größe 5\n\x1b")
    assert entry["time"].endswith("Z")


def test_below_its_level_nothing_is_written_and_libraries_only_warn(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    logging.getLogger("gateway.test").debug("hidden")
    logging.getLogger("somelibrary").info("hidden")
    logging.getLogger("somelibrary").warning("token=SECRET shown")
    err = capsys.readouterr().err
    assert "hidden" not in err
    assert "somelibrary: token=*** shown" in err
    configure_logging("error")
    logging.getLogger("somelibrary").warning("hidden")
    assert capsys.readouterr().err == ""


def test_configuring_it_twice_writes_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    configure_logging("info")
    logging.getLogger("gateway.test").info("once")
    assert capsys.readouterr().err.count("once") == 1
