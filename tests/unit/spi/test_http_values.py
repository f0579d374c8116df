"""What the HTTP seam decides without a network: addresses, redaction, statuses, settings."""

import contextlib
import gzip
import subprocess
import sys
import zlib
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BackendUnavailable, Code, ConfigError, RateLimited, RcpError, UpstreamError
from gateway.secret import Secret
from gateway.spi.http import (
    Headers,
    HttpResponse,
    HttpSettings,
    open_http,
    raise_for_status,
    redacted,
    retry_after_ms,
)
from gateway.spi.http._encoding import Inflate

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://u:p@127.0.0.1:1/x?api_key=SECRET#SECRET", "http://127.0.0.1:1/x"),
        ("https://host", "https://host"),
        ("https://HOST:443/a/b?x", "https://host:443/a/b"),
        ("http://u:p@[::1]:80/", "http://[::1]:80/"),
        ("redis://:SECRET@db:6379/0", "redis://db:6379/0"),
        ("http://u:SEC/RET@host/x", "<unreadable address>"),
        ("http://u:1/RET@host/x", "http://…"),
        ("http://u:1?RET@host/x", "http://…"),
        ("http://host:port/", "<unreadable address>"),
        ("http://[::1/", "<unreadable address>"),
        ("user:SECRET@host", "<unreadable address>"),
        ("SECRET", "<unreadable address>"),
        ("", "<unreadable address>"),
        ("http://host/a b\u2028c\x1b[0m", "http://host/a?b?c?[0m"),
    ],
)
def test_a_redacted_url_is_scheme_host_port_and_path(url, shown):
    assert redacted(url) == shown


@given(st.text(st.characters(categories=["L", "N"]), min_size=6, max_size=12).map(lambda text: f"Q{text}Q"))
def test_no_password_or_query_is_left_in_a_redacted_url(secret):
    assert secret not in redacted(f"http://user:{secret}@host/x?k={secret}#{secret}")


@given(st.text())
def test_any_text_can_be_redacted(text):
    assert redacted(text)


@pytest.mark.parametrize(
    "url", ["", "host:80", "ftp://host/", "http://", "http:///x", "http://h:99999", "http://[::1", "http://h/a/../b"]
)
@pytest.mark.anyio
async def test_a_base_url_that_cannot_work_is_a_configuration_error(url):
    with pytest.raises(ConfigError):
        async with open_http(HttpSettings(), url):
            pass


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("2", 2000),
        (" 0 ", 0),
        ("1.5", 1500),
        ("9" * 5000, 86_400_000),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10_000),
        ("Tuesday, 14-Nov-23 22:13:30 GMT", 10_000),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
        ("Fri, 14 Nov 2053 22:13:00 GMT", 86_400_000),
        ("-1", None),
        ("soon", None),
        ("nan", None),
        ("Tue, 99 Nov 2023 99:13:30 GMT", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_read_in_seconds_or_as_a_date(header, wait):
    assert retry_after_ms(header, now=NOW) == wait


@given(st.text())
def test_any_retry_after_can_be_read(text):
    wait = retry_after_ms(text, now=NOW)
    assert wait is None or 0 <= wait <= 86_400_000


def error_for(status: int, body: bytes = b"", **headers: str) -> RcpError:
    with pytest.raises(RcpError) as caught:
        raise_for_status(HttpResponse(status, Headers(headers.items()), body), now=NOW)
    return caught.value


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_success_raises_nothing(status):
    raise_for_status(HttpResponse(status))


@pytest.mark.parametrize(
    ("status", "kind", "code", "retryable"),
    [
        (302, UpstreamError, Code.BACKEND_UNAVAILABLE, False),
        (400, UpstreamError, Code.BACKEND_UNAVAILABLE, False),
        (401, UpstreamError, Code.BACKEND_UNAVAILABLE, False),
        (403, UpstreamError, Code.BACKEND_UNAVAILABLE, False),
        (404, UpstreamError, Code.BACKEND_UNAVAILABLE, False),
        (408, BackendUnavailable, Code.BACKEND_UNAVAILABLE, True),
        (409, UpstreamError, Code.BACKEND_UNAVAILABLE, False),
        (413, UpstreamError, Code.PAYLOAD_TOO_LARGE, False),
        (422, UpstreamError, Code.BACKEND_UNAVAILABLE, False),
        (429, RateLimited, Code.RATE_LIMITED, True),
        (500, BackendUnavailable, Code.BACKEND_UNAVAILABLE, True),
        (502, BackendUnavailable, Code.BACKEND_UNAVAILABLE, True),
        (503, BackendUnavailable, Code.BACKEND_UNAVAILABLE, True),
        (504, BackendUnavailable, Code.BACKEND_UNAVAILABLE, True),
    ],
)
def test_a_status_becomes_an_error_that_is_never_the_callers_fault(status, kind, code, retryable):
    error = error_for(status)
    assert (type(error), error.code, error.retryable) == (kind, code, retryable)
    assert error.data["upstreamStatus"] == status


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_handed_on(status):
    assert error_for(status, **{"Retry-After": "3"}).data["retryAfterMs"] == 3000
    assert "retryAfterMs" not in error_for(status).data


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"status":{"error":"Wrong input: SECRET"},"time":0.1}', "Wrong input: SECRET"),
        (b'{"error":{"message":"bad key SECRET","type":"x"}}', "bad key SECRET"),
        (b'{"detail":[{"msg":"x","message":"SECRET"}]}', "SECRET"),
        (b"<html>\r\n SECRET \x1b[0m", "<html> SECRET [0m"),
        (b'{"a":"SECRET"}', '{"a":"SECRET"}'),
        (b"x" * 100_000, "x" * 300),
        (b"", ""),
    ],
)
def test_an_engines_own_words_are_for_the_log_only_and_bounded(body, words):
    error = error_for(400, body)
    assert error.detail == f"HTTP 400: {words}"
    assert "SECRET" not in f"{error}{error.to_wire()}"


def test_response_headers_are_found_in_any_case_and_not_printed():
    headers = Headers([("Set-Cookie", "SECRET"), ("X-A", "1"), ("x-a", "2")])
    assert headers["X-a"] == "1, 2"
    assert "X-A" in headers
    assert headers.get("x-b") is None
    assert "SECRET" not in repr(HttpResponse(200, headers, b"SECRET"))


def test_an_answer_that_is_not_json_is_the_engines_fault():
    with pytest.raises(UpstreamError, match="not JSON"):
        HttpResponse(200, Headers(), b"<html>").json()


@pytest.mark.parametrize(
    "value",
    [
        {"pool_size": 0},
        {"max_response_bytes": 0},
        {"connect_timeout": 0},
        {"addresses": ["localhost"]},
        {"addresses": ["127.0.0.1"], "trust_env": True},
        {"client": "requests"},
        {"timout": 3},
    ],
)
def test_settings_that_cannot_work_are_refused(value):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, HttpSettings)


@pytest.mark.parametrize("value", ["a\r\nX: 1", "a\0", "ключ", "a\n"])
@pytest.mark.anyio
async def test_a_header_value_that_would_split_the_request_is_refused_unseen(value):
    with pytest.raises(ConfigError, match="X-Key") as caught:
        async with open_http(HttpSettings(), "http://host", {"X-Key": Secret(value)}):
            pass
    assert value not in str(caught.value)


@pytest.mark.parametrize("path", ["/a/../b", "..", "/a/%2e%2E/b", "./x", "/x/."])
@pytest.mark.parametrize("library", ["aiohttp", "httpx"])
@pytest.mark.anyio
async def test_a_path_cannot_leave_the_base(path, library):
    async with open_http(HttpSettings(client=library), "http://host/base") as client:
        with pytest.raises(ValueError, match="segments"):
            await client.request("GET", path)


@pytest.mark.anyio
async def test_an_application_in_this_process_is_called_through_httpx():
    async def app(scope, receive, send):
        message = await receive()
        if scope["path"] == "/fail":
            raise RuntimeError("SECRET")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-path", scope["path"].encode())]})
        await send({"type": "http.response.body", "body": message["body"]})

    async with open_http(HttpSettings(), "http://engine", asgi_app=app) as client:
        response = await client.request("POST", "/echo", json=[1], timeout=5)
        assert (response.json(), response.headers["X-Path"]) == ([1], "/echo")
        assert (await client.request("POST", "/fail", timeout=5)).status == 500
    with pytest.raises(ConfigError, match="httpx"):
        async with open_http(HttpSettings(client="aiohttp"), "http://engine", asgi_app=app):
            pass


@pytest.mark.anyio
async def test_a_host_that_is_an_address_must_be_a_pinned_one():
    async with open_http(HttpSettings(addresses=("127.0.0.1",)), "http://127.0.0.1:1"):
        pass
    with pytest.raises(ConfigError, match="pinned"):
        async with open_http(HttpSettings(addresses=("127.0.0.1",)), "http://127.0.0.2:1"):
            pass


@pytest.mark.anyio
async def test_a_missing_file_of_certificates_is_a_configuration_error(tmp_path):
    settings = HttpSettings(tls_ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match="certificates"):
        async with open_http(settings, "https://host"):
            pass


def test_importing_the_seam_loads_no_http_library():
    code = "import sys, gateway.spi.http; print(*sorted({'aiohttp', 'httpx', 'yarl', 'h11'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=6), st.sampled_from([31, 15]))
def test_compressed_data_is_decoded_however_it_is_cut(data, places, window):
    packer = zlib.compressobj(wbits=window)
    packed = packer.compress(data) + packer.flush()
    edges = [0, *sorted(place % (len(packed) + 1) for place in places), len(packed)]
    inflate = Inflate()
    assert b"".join(piece for a, b in pairwise(edges) for piece in inflate.feed(packed[a:b])) == data
    assert inflate.complete


def test_compressed_data_is_decoded_in_small_pieces_only():
    pieces = [len(piece) for piece in Inflate().feed(gzip.compress(b"\0" * 10_000_000))]
    assert (sum(pieces), max(pieces)) == (10_000_000, 65536)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data):
    with contextlib.suppress(zlib.error):
        list(Inflate().feed(data))
