"""The index version of an answer that several engines gave: theirs, in one token that a client hands back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from gateway.spi.codec import dumps, loads, mend
from gateway.spi.versions import version_gone

__all__ = ["LONGEST", "composite", "parse"]

LONGEST = 4096
"""Characters of a token."""

_FORMAT = "1."


def composite(versions: Mapping[str, str]) -> str | None:
    """The versions by engine as one token of letters, digits, ``.``, ``-`` and ``_``: equal for equal versions.

    ``None`` if there is none, or if they do not fit into :data:`LONGEST`; then the answer has no version to pin.
    """
    if not versions:
        return None
    pairs = [[mend(engine), mend(version)] for engine, version in sorted(versions.items())]
    token = _FORMAT + base64.urlsafe_b64encode(dumps(pairs)).rstrip(b"=").decode()
    return token if len(token) <= LONGEST else None


def parse(token: str) -> dict[str, str]:
    """The versions by engine, from whoever sent it: the engines need not exist, nor may the sender know of them.

    Raises ``-32010``, not retryable, for what :func:`composite` cannot have made: such a version is not here either.
    """
    if not token.startswith(_FORMAT) or len(token) > LONGEST:
        raise version_gone()
    body = token.removeprefix(_FORMAT)
    try:
        pairs = loads(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        raise version_gone() from None
    versions: dict[str, str] = {}
    for pair in pairs if isinstance(pairs, list) else ():
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(one, str) for one in pair):
            raise version_gone()
        versions[pair[0]] = pair[1]
    if composite(versions) != token:  # another order, an engine twice, another spelling
        raise version_gone()
    return versions
