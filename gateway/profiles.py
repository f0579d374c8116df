"""The configuration's ``profiles``: what is wrong with them, and what becomes of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec

from gateway import _json
from gateway.config import GatewayConfig, ProfileSettings, Walker, located, nearest
from gateway.errors import ConfigError, RcpError
from gateway.federation.profile import Profile
from gateway.filters import FieldType, parse
from gateway.model import Message, RetrieveRequest
from gateway.protocol.methods import METHODS, decode

__all__ = ["HEADS", "check_named", "check_profiles", "profiles_of"]

HEADS = frozenset({name.split("/")[0] for name in METHODS} | {"notifications", "healthz", "readyz"})
"""First segments of paths that mean something else; all of ``x-…`` belongs to vendors."""

_OF_ONE_REQUEST = ("query", "filter", "cursor", "sessionId", "indexVersion", "_meta")
"""Members of a retrieve that cannot stand for all requests."""


def check_named(config: GatewayConfig, name: str | None) -> None:
    """Raises :class:`~gateway.errors.ConfigError` for a profile that there is not; ``None`` is the base path."""
    known = [one.name for one in config.profiles]
    if name is not None and name not in known:
        there = f"there are {', '.join(known)}" if known else "none is configured"
        raise ConfigError(f"there is no profile {name!r}{nearest(name, known)} ({there})", path="profiles")


def profiles_of(config: GatewayConfig) -> list[Profile]:
    """The configured profiles. Raises :class:`~gateway.errors.ConfigErrors` with all faults."""
    walker = Walker(config.base_dir)
    check_profiles(walker, dict(enumerate(config.profiles)), [engine.id for engine in config.engines])
    if walker.errors:
        raise located(walker.errors, config.source, config.lines)
    return [
        Profile(
            name=one.name,
            engines=None if one.engines is None else frozenset(one.engines),
            filter=one.filter or None,
            options=_options(_decoded(one.defaults)),
        )
        for one in config.profiles
    ]


def check_profiles(walker: Walker, profiles: Mapping[int, ProfileSettings], engines: Sequence[str]) -> None:
    """Notes everything that is wrong with the profiles, by their place in the list, as far as no engine has to open."""
    taken: set[str] = set()
    for index, one in profiles.items():
        path = f"profiles[{index}]"
        if one.name in HEADS or one.name.startswith("x-"):
            walker.fault(f"{path}.name", f"{one.name!r} begins the path of RCP methods")
        if one.name in taken:
            walker.fault(f"{path}.name", f"the name {one.name!r} is already taken")
        taken.add(one.name)
        if one.engines is not None and not one.engines:
            walker.fault(f"{path}.engines", "name at least one engine, or leave the key out for all")
        for place, id in enumerate(one.engines or ()):
            if id not in engines:
                walker.fault(f"{path}.engines[{place}]", f"there is no engine {id!r}{nearest(id, engines)}")
        try:
            parse(one.filter, _AnyField())
        except RcpError as error:
            walker.fault(f"{path}.{error.data.get('path', 'filter')}", error.message)
        _check_options(walker, one.defaults, f"{path}.defaults")


def _check_options(walker: Walker, given: Mapping[str, Any], path: str) -> None:
    _check_names(walker, RetrieveRequest, given, path)
    for name in _OF_ONE_REQUEST:
        if name in given:
            told = "use the profile's own 'filter'" if name == "filter" else "it belongs to a single request"
            walker.fault(f"{path}.{name}", told)
    known = {one.encode_name for one in msgspec.structs.fields(RetrieveRequest)}
    left = {name: value for name, value in given.items() if name in known and name not in _OF_ONE_REQUEST}
    while left:  # decoding stops at the first fault: once more without the option that has it
        try:
            _decoded(left)
        except RcpError as error:
            field = str(error.data.get("field", ""))
            walker.fault(f"{path}.{field}".rstrip("."), error.message)
            if left.pop(re.split(r"[.\[]", field)[0], None) is None:
                return
        else:
            return


def _check_names(walker: Walker, type: type[Message], given: Mapping[str, Any], path: str) -> None:
    """Unknown members, which the protocol would pass over, are mistakes in a configuration."""
    known = {one.encode_name: one.type for one in msgspec.structs.fields(type)}
    for name, value in given.items():
        if name not in known:
            usable = [one for one in known if one not in _OF_ONE_REQUEST]
            walker.fault(f"{path}.{name}", f"unknown option{nearest(str(name), usable)}")
        elif isinstance(value, Mapping):
            for inner in get_args(known[name]):
                if isinstance(inner, _STRUCT) and issubclass(inner, Message):
                    _check_names(walker, inner, value, f"{path}.{name}")


_STRUCT = type(Message)


def _decoded(given: Mapping[str, Any]) -> RetrieveRequest:
    """The options as a request would carry them, checked like one."""
    request: RetrieveRequest = decode("retrieve", _json.encode({"query": "", **given}))
    return request


def _options(request: RetrieveRequest) -> dict[str, Any]:
    return {
        name: value
        for name, value in msgspec.structs.asdict(request).items()
        if value is not None and name not in ("query", "meta")
    }


class _AnyField(Mapping[str, FieldType | None]):
    """Every field there could be: which there are is known when the engines are open."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> None:
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
