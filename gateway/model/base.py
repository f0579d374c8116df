"""What all RCP messages have in common."""

from __future__ import annotations

import msgspec

__all__ = ["Message"]


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An immutable RCP message. Optional members are ``None``; on input, null means absent (RCP section 4.6).

    Defaults that mean something (``k`` = 10, ``strict`` = true) are the planner's business, so that an absent member
    and a member that names the default stay distinguishable. Unknown members are ignored, as the protocol demands.
    """
