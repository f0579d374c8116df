"""The TLS context of one engine, the same whichever library uses it."""

from __future__ import annotations

import asyncio
import ssl

from gateway.errors import ConfigError
from gateway.spi.http._message import HttpSettings

__all__ = ["tls_context"]


async def tls_context(settings: HttpSettings) -> ssl.SSLContext:
    """Reads certificate files, so in a thread. Raises ``ConfigError`` if the given file is none."""

    def build() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=settings.tls_ca_file)
        if not settings.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    try:
        return await asyncio.to_thread(build)
    except OSError:
        raise ConfigError("the file of trusted certificates cannot be read", path="http.tls_ca_file") from None
