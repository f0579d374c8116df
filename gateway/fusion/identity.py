"""When two hits are the same document.

Identity compares keys only. Nothing normalised here is ever emitted.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gateway.errors import ConfigError
from gateway.fusion.ranking import Note, Ranking
from gateway.model import Hit, member, text_of_hit

__all__ = ["Identity", "UriRules", "qualify", "read_identity", "uri_key"]

_PARTS = ("id", "uri", "content")
_TRACKING = re.compile(
    r"utm_\w+|mtm_\w+|pk_\w+|hsa_\w+|gclid|gclsrc|dclid|gbraid|wbraid|fbclid|msclkid|yclid|twclid|ttclid|igshid"
    r"|mc_cid|mc_eid|_hsenc|_hsmi|vero_id|oly_anon_id|oly_enc_id|s_cid",
    re.IGNORECASE,
)
_DEFAULT_PORTS = {"http": 80, "https": 443, "ftp": 21}


class UriRules(msgspec.Struct, frozen=True, kw_only=True):
    """What two URIs may differ in and still name one document.

    ``scheme`` means http against https. ``tracking`` means query parameters that only tell where a click came from.
    """

    scheme: bool = True
    default_port: bool = True
    fragment: bool = True
    tracking: bool = True
    trailing_slash: bool = True


class Identity(msgspec.Struct, frozen=True):
    """Hits are one document if *any* of the parts says so; with several parts that is closed transitively."""

    parts: tuple[str, ...] = ("id",)
    uri: UriRules = UriRules()


def read_identity(name: str) -> Identity:
    """``id``, ``uri``, ``content``, or several joined by ``+``. Raises :class:`ConfigError`."""
    parts = tuple(part.strip() for part in name.split("+"))
    unknown = [part for part in parts if part not in _PARTS]
    if unknown:
        raise ConfigError(f"unknown identity {unknown[0]!r}; known are {', '.join(_PARTS)} and sums of them")
    return Identity(tuple(part for part in _PARTS if part in parts))


def qualify(corpus: str | None, id: str) -> str:
    """The id as the gateway emits it."""
    return id if corpus is None else f"{corpus}/{id}"


def uri_key(uri: str, rules: UriRules) -> str:
    """The URI with what the rules disregard removed; for comparison only."""
    try:
        parts = urlsplit(uri.strip())
        port = parts.port
    except ValueError:
        return uri
    scheme = parts.scheme.lower()
    if port is not None and rules.default_port and _DEFAULT_PORTS.get(scheme) == port:
        port = None
    host = (parts.hostname or "") + (f":{port}" if port is not None else "")
    user, at, _ = parts.netloc.rpartition("@")
    if rules.scheme and scheme == "https":
        scheme = "http"
    path, query = parts.path, parts.query
    if rules.trailing_slash:
        path = path.rstrip("/")
    elif host and not path:
        path = "/"
    if rules.tracking and query:
        query = "&".join(item for item in query.split("&") if not _TRACKING.fullmatch(item.partition("=")[0]))
    fragment = "" if rules.fragment else parts.fragment
    return f"{scheme}://{user}{at}{host}{path}?{query}#{fragment}"


def document_keys(rankings: Sequence[Ranking], identity: Identity) -> tuple[list[list[Hashable]], list[Note]]:
    """For every hit of every ranking a key that is equal for one document, under any of the identity's parts.

    Keys never join hits of engines with different configured trust, except inside one corpus that holds both: else an
    engine nobody vouches for could lift, or dilute, a trusted document by claiming its id, URI or text.
    """
    domains = _domains(rankings)
    notes: list[Note] = []
    found: list[list[tuple[Hashable, ...]]] = []
    for ranking, domain in zip(rankings, domains, strict=True):
        keys = [_keys(hit, ranking, domain, identity) for hit in ranking.hits]
        lacking = sum(not own for own in keys)
        if lacking:
            text = f"{lacking} hits of {ranking.engine} carry nothing for identity by {'+'.join(identity.parts)}"
            notes.append(Note("identity-fallback", (ranking.engine,), f"{text}: told apart by id"))
        found.append(
            [own or (_id_key(hit, ranking, domain),) for own, hit in zip(keys, ranking.hits, strict=True)],
        )
    if len(identity.parts) == 1:
        return [[own[0] for own in keys] for keys in found], notes
    root = _closure([own for keys in found for own in keys])
    return [[root(own[0]) for own in keys] for keys in found], notes


def trust_splits(rankings: Sequence[Ranking]) -> bool:
    """True if equal ids may have to stay apart because their engines are trusted differently."""
    return len({r.trust for r in rankings}) > 1 and any(r.corpus is None for r in rankings)


def _domains(rankings: Sequence[Ranking]) -> list[Hashable]:
    """The circle of engines each ranking may merge with. A partition, so that merging stays transitive."""
    levels: dict[str, set[str]] = {}
    for ranking in rankings:
        if ranking.corpus is not None:
            levels.setdefault(ranking.corpus, set()).add(ranking.trust)
    return [
        ("corpus", r.corpus) if r.corpus is not None and len(levels[r.corpus]) > 1 else ("trust", r.trust)
        for r in rankings
    ]


def _id_key(hit: Hit, ranking: Ranking, domain: Hashable) -> Hashable:
    return ("id", domain, qualify(ranking.corpus, hit.id))


def _keys(hit: Hit, ranking: Ranking, domain: Hashable, identity: Identity) -> tuple[Hashable, ...]:
    keys: list[Hashable] = []
    for part in identity.parts:
        match part:
            case "id":
                keys.append(_id_key(hit, ranking, domain))
            case "uri":
                place = _place(hit, identity.uri)
                if place is not None:
                    keys.append(("uri", domain, place))
            case _:
                text = text_of_hit(hit)
                if text is not None and text.strip():
                    keys.append(("content", domain, text))
    return tuple(keys)


def _place(hit: Hit, rules: UriRules) -> Hashable | None:
    """The URI, and where in it: the chunk's index, else the page, else the start."""
    citation = member(hit, "citation")
    uri = citation.get("uri") if isinstance(citation, dict) else None
    if not isinstance(uri, str) or not uri.strip():
        return None
    chunk = member(hit, "chunk")
    within: tuple[tuple[str, Any], ...] = (
        ("index", chunk.get("index") if isinstance(chunk, dict) else None),
        ("page", citation.get("page")),
        ("start", citation.get("start")),
    )
    place = next(((name, at) for name, at in within if isinstance(at, int) and not isinstance(at, bool)), None)
    return (uri_key(uri, rules), place)


class _closure:  # noqa: N801  (used as a function)
    """Union-find over the keys: hits that share any key, directly or through others, have one root.

    Which key becomes the root depends on the order; which hits share one does not.
    """

    def __init__(self, groups: Sequence[Sequence[Hashable]]) -> None:
        self._parent: dict[Hashable, Hashable] = {}
        for group in groups:
            first = self(group[0])
            for key in group[1:]:
                self._parent[self(key)] = first

    def __call__(self, key: Hashable) -> Hashable:
        parent = self._parent
        root = key
        while (above := parent.setdefault(root, root)) != root:
            root = above
        while parent[key] != root:
            parent[key], key = root, parent[key]
        return root
