"""Index versions (RCP section 7.7.1): what an engine's content is called, and what to say when it is another by now.

The version of a set of documents is the sum of its documents' digests. Adding and removing one is adding and
subtracting one number, in any order, and equal content has an equal version wherever it is stored.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

from gateway.errors import BackendUnavailable

__all__ = ["MODULUS", "check_pin", "digest", "told_meta", "version_gone"]

MODULUS = 2**128
"""Sums of digests are taken modulo this."""


def digest(*parts: str) -> int:
    """A number below :data:`MODULUS` for these texts in this order; where one ends makes a difference."""
    seal = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        seal.update(len(encoded).to_bytes(8, "big") + encoded)
    return int.from_bytes(seal.digest(), "big")


def told_meta(meta: Mapping[str, Any]) -> str:
    """Metadata as text to make a digest of. What cannot be printed is never taken for equal to anything."""
    try:
        return repr(sorted(meta.items()))
    except (RecursionError, ValueError):
        return uuid.uuid4().hex


def check_pin(pinned: str | None, version: str) -> None:
    """Raises :func:`version_gone` if the call wants another version than this."""
    if pinned is not None and pinned != version:
        raise version_gone()


def version_gone() -> BackendUnavailable:
    """``-32010`` that no retry will mend: the version a call is pinned to is not the one there is."""
    return BackendUnavailable("the pinned index version is gone", retryable=False, data={"retryable": False})
