"""Settings, and what is offered before the upstream has been seen."""

import pytest

from gateway.config.walk import Walker
from gateway.errors import ConfigError
from gateway.secret import Secret
from gateway_rcp.kind import RcpKind
from gateway_rcp.settings import RcpConfig


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, ""),
        ({"url": "http://a", "command": ["b"]}, ""),
        ({"url": "ftp://a"}, "url"),
        ({"url": "http://"}, "url"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"url": "http://a", "env": {"A": "b"}}, "env"),
        ({"url": "http://a", "serial": True}, "serial"),
        ({"command": ["b"], "token": Secret("x")}, "token"),
        ({"url": "http://a", "token": Secret("x"), "headers": {"authorization": "y"}}, "token"),
        ({"url": "http://a", "token": Secret("x\ny")}, "token"),
        ({"url": "http://a", "headers": {"X-A": "b\r\nc"}}, "headers.X-A"),
        ({"url": "http://a", "headers": {"X A": "b"}}, "headers.X A"),
        ({"url": "http://a", "max_k": 0}, "max_k"),
        ({"url": "http://a", "handshake_timeout": 0.0}, "handshake_timeout"),
        ({"command": ["b"], "max_line_bytes": 10}, "max_line_bytes"),
    ],
)
def test_settings_that_cannot_work_are_named(settings, path):
    with pytest.raises(ConfigError) as caught:
        RcpConfig(**settings)
    assert caught.value.path == path


def test_settings_are_read_from_a_configuration(monkeypatch, tmp_path):
    monkeypatch.setenv("KEY", "hush")
    walker = Walker(tmp_path)
    config = walker.read(
        RcpConfig,
        {"url": "http://a", "headers": {"X-A": {"env": "KEY"}, "X-B": "b"}, "fields": {"lang": "keyword"}},
        "with",
    )
    assert walker.errors == []
    assert config.headers == {"X-A": Secret("hush"), "X-B": "b"}
    config = walker.read(RcpConfig, {"command": ["a", "b"], "cwd": "c", "serial": True}, "with")
    assert config.cwd == tmp_path / "c"
    walker.read(RcpConfig, {"url": "http://a", "uri": "b"}, "with")
    assert [error.path for error in walker.errors] == ["with.uri"]


def test_before_it_was_seen_an_upstream_is_expected_to_retrieve_and_no_more():
    offered = RcpKind().offers(RcpConfig(url="http://a", max_k=7))
    assert offered.retrieve is not None
    assert offered.retrieve.max_k == 7
    assert (offered.filter, offered.embed, offered.rerank, offered.index) == (None, None, None, None)


def test_configured_fields_are_offered_at_once():
    offered = RcpKind().offers(RcpConfig(url="http://a", fields={"lang": "keyword"}))
    assert offered.filter is not None
    assert offered.filter.fields == {"lang": "keyword"}


def test_it_federates():
    assert RcpKind().federates
    assert RcpKind().name == "rcp"
