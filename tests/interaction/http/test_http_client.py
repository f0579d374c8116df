"""One body of tests over both HTTP libraries, against a real server on the loopback."""

import asyncio
import gzip
import zlib

import anyio
import pytest

from gateway.errors import BackendUnavailable, Code, RcpError, Timeout, UpstreamError
from gateway.secret import Secret

pytestmark = pytest.mark.anyio

SECRET = "sk-very-secret"


async def hang(request):
    await asyncio.wait_for(request.gone.wait(), 10)


def raw(data: bytes, *, then_close: bool = True):
    async def script(request):
        await request.send(data)
        if then_close:
            request.writer.close()
        else:
            await hang(request)

    return script


async def test_a_request_gives_status_headers_and_body(server, opened):
    server.script = lambda request: request.reply("201 Created", b'{"a":1}', "X-One: 1", "x-one: 2")
    async with opened() as client:
        response = await client.request("POST", "/collections/c/points", json={"q": "x"}, timeout=5)
    assert (response.status, response.body, response.json()) == (201, b'{"a":1}', {"a": 1})
    assert response.headers["X-ONE"] == response.headers["x-one"] == "1, 2"
    (request,) = server.requests
    assert (request.method, request.target, request.body) == ("POST", "/collections/c/points", b'{"q":"x"}')
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"


async def test_both_libraries_write_the_same_head_and_target(server, opened):
    async with opened(server.url + "/base path/?key=1") as client:
        await client.request("GET", "a%2Fb/ü?#", params={"x y": "é&", "n": 3, "f": True, "many": ["1", "2"]}, timeout=5)
        await client.request("PUT", "", content=b"raw", timeout=5)
    first, second = server.requests
    assert first.target == "/base%20path/a%2Fb/%C3%BC%3F%23?key=1&x+y=%C3%A9%26&n=3&f=true&many=1&many=2"
    assert (second.target, second.body) == ("/base%20path?key=1", b"raw")
    assert set(first.headers) - {"accept"} == {"host", "user-agent", "accept-encoding"}
    assert first.headers["host"] == server.url.removeprefix("http://")


async def test_headers_of_the_client_of_the_call_and_of_the_url_are_sent_and_secrets_are_revealed(server, opened):
    url = server.url.replace("http://", "http://user:p%40ss@")
    async with opened(url, {"api-key": Secret(SECRET), "X-A": "1"}) as client:
        await client.request("GET", "/", headers={"x-a": "2"}, timeout=5)
        assert SECRET not in repr(vars(client))
        await client.request("GET", "/", headers={"authorization": Secret("Bearer t")}, timeout=5)
    first, second = server.requests
    assert first.headers["api-key"] == SECRET
    assert first.headers["x-a"] == "2"
    assert first.headers["authorization"] == "Basic dXNlcjpwQHNz"
    assert second.headers["authorization"] == "Bearer t"


async def test_a_connection_is_used_again(server, opened):
    async with opened() as client:
        for _ in range(3):
            await client.request("POST", "/", content=b"x", timeout=5)
    assert server.connections == 1


async def test_a_body_of_some_megabytes_is_sent_whole(server, opened):
    async with opened() as client:
        await client.request("POST", "/", content=b"x" * 3_000_000, timeout=10)
    assert server.requests[0].body == b"x" * 3_000_000


async def test_the_timeout_covers_connecting(opened, blackhole):
    async with opened(blackhole) as client:
        with anyio.fail_after(5), pytest.raises(Timeout) as caught:
            await client.request("GET", "/", timeout=0.1)
    assert caught.value.code == Code.TIMEOUT


async def test_the_connect_timeout_holds_without_a_timeout_of_the_call(opened, blackhole):
    async with opened(blackhole, connect_timeout=0.1) as client:
        with anyio.fail_after(5), pytest.raises(Timeout):
            await client.request("GET", "/")


async def test_the_timeout_covers_waiting_for_the_head_and_the_server_sees_the_end(server, opened):
    server.script = hang
    async with opened() as client:
        with anyio.fail_after(5), pytest.raises(Timeout):
            await client.request("GET", "/", timeout=0.1)
        with anyio.fail_after(2):
            await server.requests[0].gone.wait()


async def test_the_timeout_covers_a_slow_body(server, opened):
    server.script = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", then_close=False)
    async with opened() as client:
        with anyio.fail_after(5), pytest.raises(Timeout):
            await client.request("GET", "/", timeout=0.1)
        with anyio.fail_after(2):
            await server.requests[0].gone.wait()


async def test_the_timeout_covers_waiting_for_a_connection_of_the_pool(server, opened):
    server.script = hang
    async with opened(pool_size=1) as client, asyncio.TaskGroup() as group:
        holder = group.create_task(client.request("GET", "/holds"))
        await server.seen(1)
        with anyio.fail_after(5), pytest.raises(Timeout):
            await client.request("GET", "/waits", timeout=0.1)
        assert len(server.requests) == 1
        holder.cancel()


async def test_a_timeout_of_nothing_sends_nothing(server, opened):
    async with opened() as client:
        with pytest.raises(Timeout):
            await client.request("GET", "/", timeout=0)
    assert server.connections == 0


async def test_a_deadline_around_the_call_is_not_taken_for_ours(server, opened):
    server.script = hang
    async with opened() as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.request("GET", "/", timeout=5)
        with anyio.fail_after(2):
            await server.requests[0].gone.wait()


async def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_read(server, opened):
    server.script = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", then_close=False)
    async with opened(max_response_bytes=1000) as client:
        with anyio.fail_after(5), pytest.raises(UpstreamError, match="limit of 1000 bytes") as caught:
            await client.request("GET", "/")
    assert not caught.value.retryable
    with anyio.fail_after(2):
        await server.requests[0].gone.wait()


async def test_a_body_exactly_at_the_limit_is_read(server, opened):
    server.script = lambda request: request.reply(body=b"x" * 1000)
    async with opened(max_response_bytes=1000) as client:
        assert len((await client.request("GET", "/", timeout=5)).body) == 1000


async def test_an_endless_chunked_body_is_cut_at_the_limit(server, opened):
    async def endless(request):
        await request.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not request.gone.is_set():
            await request.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            await asyncio.sleep(0)

    server.script = endless
    async with opened(max_response_bytes=100_000) as client:
        with anyio.fail_after(5), pytest.raises(UpstreamError, match="limit"):
            await client.request("GET", "/")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate"])
async def test_compressed_bodies_are_decoded(server, opened, encoding):
    text = b"hello " * 50_000
    match encoding:
        case "gzip":
            packed = gzip.compress(text[:9]) + gzip.compress(text[9:])
        case "deflate":
            packed = zlib.compress(text)
        case _:
            raw_deflate = zlib.compressobj(wbits=-15)
            packed = raw_deflate.compress(text) + raw_deflate.flush()
    server.script = lambda request: request.reply("200 OK", packed, f"Content-Encoding: {encoding.split()[-1]}")
    async with opened() as client:
        assert (await client.request("GET", "/", timeout=5)).body == text


async def test_the_limit_counts_decompressed_bytes(server, opened):
    bomb = gzip.compress(b"\0" * 50_000_000)
    server.script = lambda request: request.reply("200 OK", bomb, "Content-Encoding: gzip")
    async with opened(max_response_bytes=1_000_000) as client:
        with pytest.raises(UpstreamError, match="limit"):
            await client.request("GET", "/", timeout=5)


@pytest.mark.parametrize("body", [gzip.compress(b"x" * 999, mtime=0)[:-12], b"not gzip at all"], ids=["cut", "no gzip"])
async def test_a_compressed_body_that_is_broken_is_the_engines_fault(server, opened, body):
    server.script = lambda request: request.reply("200 OK", body, "Content-Encoding: gzip")
    async with opened() as client:
        with pytest.raises(BackendUnavailable):
            await client.request("GET", "/", timeout=5)


async def test_chunks_arrive_as_they_are_sent(server, opened):
    more = asyncio.Event()

    async def two_parts(request):
        await request.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await more.wait()
        await request.send(b"3\r\ndef\r\n0\r\n\r\n")

    server.script = two_parts
    async with opened() as client, client.stream("GET", "/", timeout=5) as response:
        assert response.status == 200
        chunks = response.chunks()
        assert await anext(chunks) == b"abc"
        more.set()
        assert [chunk async for chunk in chunks] == [b"def"]


async def test_leaving_a_stream_early_closes_the_connection_and_the_client_goes_on(server, opened):
    server.script = raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", then_close=False)
    async with opened(pool_size=1) as client:
        async with client.stream("GET", "/", timeout=5) as response:
            async for _ in response.chunks():
                break
        with anyio.fail_after(2):
            await server.requests[0].gone.wait()
        server.script = lambda request: request.reply()
        assert (await client.request("GET", "/", timeout=5)).status == 200


async def test_an_exception_inside_a_stream_block_comes_out_as_it_is(server, opened):
    async with opened(pool_size=1) as client:
        for error in (TimeoutError("mine"), OSError("mine"), KeyError("mine")):
            with pytest.raises(type(error)) as caught:
                async with client.stream("GET", "/", timeout=5):
                    raise error
            assert caught.value is error


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_redirects_are_responses(server, opened, status):
    server.script = lambda request: request.reply(status, b"", "Location: /elsewhere")
    async with opened() as client:
        response = await client.request("POST", "/", content=b"x", timeout=5)
    assert response.status == int(status[:3])
    assert len(server.requests) == 1


async def test_asked_to_follow_redirects_it_does_so_within_the_origin_only(server, opened):
    places = {"/a": "/b?x=1", "/b?x=1": "/c", "/loop": "/loop"}

    async def script(request):
        if request.target in places:
            await request.reply("307 Temporary Redirect", b"", f"Location: {places[request.target]}")
        elif request.target == "/out":
            await request.reply("302 Found", b"", "Location: http://169.254.169.254/latest")
        elif request.target == "/see":
            await request.reply("303 See Other", b"", "Location: /c")
        else:
            await request.reply(body=request.method.encode() + request.body)

    server.script = script
    async with opened(follow_redirects=True) as client:
        assert (await client.request("POST", "/a", content=b"x", timeout=5)).body == b"POSTx"
        assert (await client.request("POST", "/see", content=b"x", timeout=5)).body == b"GET"
        assert (await client.request("GET", "/out", timeout=5)).status == 302
        assert (await client.request("GET", "/loop", timeout=5)).status == 307


async def test_a_refused_connection_is_an_unavailable_backend_and_shows_no_secret(opened, closed_port):
    url = f"http://user:{SECRET}@127.0.0.1:{closed_port}/x?api_key={SECRET}"
    async with opened(url, {"api-key": Secret(SECRET)}) as client:
        with pytest.raises(BackendUnavailable) as caught:
            await client.request("GET", "/y", params={"q": SECRET}, timeout=5)
    error = caught.value
    assert (error.code, error.retryable) == (Code.BACKEND_UNAVAILABLE, True)
    assert "127.0.0.1" not in error.message
    assert f"http://127.0.0.1:{closed_port}/x/y" in error.detail
    assert SECRET not in f"{error!r}{error.detail}{error.to_wire()}{error.__cause__}{client!r}"


@pytest.mark.parametrize(
    "answer",
    [
        b"hello there\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    ],
    ids=["garbage", "nothing", "half a head", "half a body", "no last chunk", "bad chunk"],
)
async def test_an_answer_that_is_broken_is_an_unavailable_backend(server, opened, answer):
    server.script = raw(answer)
    async with opened() as client:
        with anyio.fail_after(5), pytest.raises(BackendUnavailable) as caught:
            await client.request("POST", "/", content=b"x")
    assert caught.value.retryable


async def test_a_reset_inside_the_body_is_an_unavailable_backend(server, opened):
    async def script(request):
        await request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
        await reading.wait()
        request.reset()

    reading = asyncio.Event()
    server.script = script
    async with opened() as client, client.stream("GET", "/", timeout=5) as response:
        assert await anext(response.chunks()) == b"abc"
        reading.set()
        with pytest.raises(BackendUnavailable):
            await response.read()


async def test_an_unknown_encoding_is_refused(server, opened):
    server.script = lambda request: request.reply("200 OK", b"x", "Content-Encoding: br")
    async with opened() as client:
        with pytest.raises(UpstreamError, match="encoding"):
            await client.request("GET", "/", timeout=5)


async def test_a_name_that_does_not_resolve_is_an_unavailable_backend(opened):
    async with opened("http://nowhere.invalid") as client:
        with pytest.raises(BackendUnavailable, match="resolve"):
            await client.request("GET", "/", timeout=10)


async def test_a_pinned_name_is_dialled_at_its_addresses_only(server, opened):
    port = server.url.rpartition(":")[2]
    async with opened(f"http://engine.invalid:{port}", addresses=("127.0.0.1",)) as client:
        assert (await client.request("GET", "/", timeout=5)).status == 200
    assert server.requests[0].headers["host"] == f"engine.invalid:{port}"
    async with opened(f"http://localhost:{port}", addresses=("127.0.0.9", "::1")) as client:
        with pytest.raises(BackendUnavailable):
            await client.request("GET", "/", timeout=5)
    assert len(server.requests) == 1


async def test_a_closed_client_says_so(server, opened):
    async with opened() as client:
        await client.aclose()
        with pytest.raises(RcpError, match="closed"):
            await client.request("GET", "/", timeout=5)


async def test_a_head_request_has_a_length_but_no_body(server, opened):
    server.script = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")
    async with opened(max_response_bytes=100) as client:
        response = await client.request("HEAD", "/", timeout=5)
    assert (response.status, response.body) == (200, b"")


async def test_five_cancelled_calls_are_seen_to_end_and_the_next_call_is_quick(server, opened, record_property):
    clock = asyncio.get_running_loop().time
    server.script = hang
    async with opened(pool_size=5) as client:
        calls = [asyncio.create_task(client.request("POST", "/", content=b"x", timeout=3)) for _ in range(5)]
        with anyio.fail_after(5):
            requests = await server.seen(5)
        start = clock()
        for call in calls:
            call.cancel()
        with anyio.fail_after(2):
            for request in requests[:5]:
                await request.gone.wait()
        ended = clock() - start
        assert all([await _cancelled(call) for call in calls])
        server.script = lambda request: request.reply()
        start = clock()
        with anyio.fail_after(2):
            assert (await client.request("POST", "/", content=b"x")).status == 200
        following = clock() - start
    record_property("server saw all five end, ms", ended * 1000)
    record_property("next call, ms", following * 1000)
    print(f"five ends seen after {ended * 1000:.1f} ms, next call {following * 1000:.1f} ms")


async def test_two_hundred_queued_and_cancelled_calls_leave_the_pool_usable(server, opened):
    clock = asyncio.get_running_loop().time
    server.script = hang
    async with opened(pool_size=5) as client:
        calls = [asyncio.create_task(client.request("POST", "/", content=b"x")) for _ in range(205)]
        with anyio.fail_after(5):
            await server.seen(5)
        for call in calls:
            call.cancel()
        assert all([await _cancelled(call) for call in calls])
        assert len(server.requests) == 5
        server.script = lambda request: request.reply()
        start = clock()
        with anyio.fail_after(2):
            assert (await client.request("POST", "/", content=b"x")).status == 200
        print(f"after 200 queued and cancelled: {(clock() - start) * 1000:.1f} ms")


async def test_calls_cancelled_while_they_connect_take_no_slot_along(opened, blackhole):
    async with opened(blackhole, pool_size=2) as client:
        for _ in range(6):
            with pytest.raises(Timeout):
                await client.request("GET", "/", timeout=0.02)
        waiting = asyncio.create_task(client.request("GET", "/", timeout=0.3))
        with anyio.fail_after(5), pytest.raises(Timeout):
            await waiting


async def _cancelled(call) -> bool:
    await asyncio.wait([call])
    return call.cancelled()


async def test_the_libraries_own_logs_hold_no_secret(server, opened, caplog):
    caplog.set_level(0)
    async with opened(f"{server.url}/?key={SECRET}", {"api-key": Secret(SECRET)}) as client:
        await client.request("GET", "/x", params={"q": SECRET}, timeout=5)
    assert SECRET in server.requests[0].target
    assert SECRET not in caplog.text


async def test_the_proxy_of_the_environment_is_used_only_if_asked_for(server, opened, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    async with opened("http://engine.invalid/a", trust_env=True) as client:
        assert (await client.request("GET", "/b", timeout=5)).status == 200
    assert server.requests[0].target == "http://engine.invalid/a/b"
    async with opened("http://engine.invalid/a") as client:
        with pytest.raises(BackendUnavailable):
            await client.request("GET", "/b", timeout=5)
