"""Ranked lists in, one ranked list out: no I/O, no clock, no order of arrival."""

from gateway.fusion.across import MIX, passage_of, rescored, rescored_by
from gateway.fusion.fuse import fuse, fuse_queries
from gateway.fusion.identity import Identity, UriRules, qualify, read_identity
from gateway.fusion.merge import merged_hit, merged_meta, merged_trust
from gateway.fusion.ranking import Copy, Fused, LegOffer, Note, Ranking, Scale
from gateway.fusion.strategies import Confidence, Contributions, Convex, Rrf, Strategy, Weighted, choose
from gateway.fusion.weights import leg_weights, read_weight

__all__ = [
    "MIX",
    "Confidence",
    "Contributions",
    "Convex",
    "Copy",
    "Fused",
    "Identity",
    "LegOffer",
    "Note",
    "Ranking",
    "Rrf",
    "Scale",
    "Strategy",
    "UriRules",
    "Weighted",
    "choose",
    "fuse",
    "fuse_queries",
    "leg_weights",
    "merged_hit",
    "merged_meta",
    "merged_trust",
    "passage_of",
    "qualify",
    "read_identity",
    "read_weight",
    "rescored",
    "rescored_by",
]
