"""The filter language of RCP 1.0 section 8: reading, meaning, normal form, push-down. No I/O, no vendors.

=================================  ==============================================================================
:func:`parse`                      wire JSON → :data:`Filter`, or ``-32602`` / ``-32005``
:func:`holds`, :func:`judge`       what a filter means: the oracle
:func:`nnf`, :func:`fold`          normal form; fitting a filter to the fields one engine declares
:class:`FilterCompiler`            a filter → the half an engine applies and the half that is checked on its answers
:func:`to_json`                    back to wire JSON, for engines that speak RCP themselves
=================================  ==============================================================================

The prose is ``docs/filters.md``.
"""

from __future__ import annotations

from gateway.filters.compile import Bound, Exact, FilterCompiler, Loose, Pushdown, push_folded
from gateway.filters.dates import Instant, literal_instant, read_rfc3339, stored_micros
from gateway.filters.holds import Judge, Meta, Test, compiled, holds, judge, judged
from gateway.filters.normal import Folded, Undeclared, conjunction, disjunction, fold, is_positive, nnf
from gateway.filters.parse import MAX_SAFE_INTEGER, Limits, nearest, parse
from gateway.filters.tree import (
    FALSE,
    ORDERED_OPS,
    ORDERED_TYPES,
    TRUE,
    And,
    Condition,
    Constant,
    DateEncoding,
    FieldType,
    Filter,
    Not,
    Op,
    Or,
    Scalar,
    Value,
    depth,
    fields_of,
    leaves,
    to_json,
)

__all__ = [
    "FALSE",
    "MAX_SAFE_INTEGER",
    "ORDERED_OPS",
    "ORDERED_TYPES",
    "TRUE",
    "And",
    "Bound",
    "Condition",
    "Constant",
    "DateEncoding",
    "Exact",
    "FieldType",
    "Filter",
    "FilterCompiler",
    "Folded",
    "Instant",
    "Judge",
    "Limits",
    "Loose",
    "Meta",
    "Not",
    "Op",
    "Or",
    "Pushdown",
    "Scalar",
    "Test",
    "Undeclared",
    "Value",
    "compiled",
    "conjunction",
    "depth",
    "disjunction",
    "fields_of",
    "fold",
    "holds",
    "is_positive",
    "judge",
    "judged",
    "leaves",
    "literal_instant",
    "nearest",
    "nnf",
    "parse",
    "push_folded",
    "read_rfc3339",
    "stored_micros",
    "to_json",
]
