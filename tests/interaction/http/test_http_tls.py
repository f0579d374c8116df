"""TLS over both HTTP libraries: what is trusted, what is not; a pinned name is still the name that is verified."""

import asyncio
import shutil
import ssl
import subprocess

import anyio
import pytest

from gateway.errors import BackendUnavailable, Timeout

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl"),
]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=engine.invalid "
        "-addext subjectAltName=DNS:engine.invalid -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
async def tls_port(certificate, server):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0, ssl=context)
    yield listening.sockets[0].getsockname()[1]
    listening.close()


async def test_a_pinned_name_is_verified_against_the_given_authority(server, opened, tls_port, certificate):
    url = f"https://engine.invalid:{tls_port}"
    async with opened(url, addresses=("127.0.0.1",), tls_ca_file=str(certificate / "cert.pem")) as client:
        assert (await client.request("GET", "/", timeout=5)).status == 200
    assert server.requests[0].headers["host"] == f"engine.invalid:{tls_port}"


async def test_an_unknown_authority_is_not_trusted_and_not_tried_again(opened, tls_port):
    async with opened(f"https://engine.invalid:{tls_port}", addresses=("127.0.0.1",)) as client:
        with pytest.raises(BackendUnavailable, match="not trusted") as caught:
            await client.request("GET", "/", timeout=5)
    assert not caught.value.retryable


async def test_another_name_than_the_certificates_is_not_trusted(opened, tls_port, certificate):
    async with opened(f"https://127.0.0.1:{tls_port}", tls_ca_file=str(certificate / "cert.pem")) as client:
        with pytest.raises(BackendUnavailable, match="not trusted"):
            await client.request("GET", "/", timeout=5)


async def test_without_verification_anything_is_taken(opened, tls_port):
    async with opened(f"https://127.0.0.1:{tls_port}", tls_verify=False) as client:
        assert (await client.request("GET", "/", timeout=5)).status == 200


async def test_a_server_without_tls_is_a_failure_of_tls(opened):
    async def plain(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with opened(f"https://127.0.0.1:{port}") as client:
            with pytest.raises(BackendUnavailable, match="TLS"):
                await client.request("GET", "/", timeout=5)


async def test_the_timeout_covers_the_handshake_and_the_server_sees_the_end(opened):
    gone = asyncio.Event()

    async def silent(reader, writer):
        await reader.read()
        gone.set()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with opened(f"https://127.0.0.1:{port}") as client:
            with anyio.fail_after(5), pytest.raises(Timeout):
                await client.request("GET", "/", timeout=0.1)
            with anyio.fail_after(2):
                await gone.wait()
