"""The options of ``query``, and how they become the parameters of a ``retrieve``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

__all__ = ["retrieve_options", "retrieve_params"]

_PLAIN = {
    "k": "k",
    "mode": "mode",
    "candidate_k": "candidateK",
    "min_score": "minScore",
    "token_budget": "tokenBudget",
    "session": "sessionId",
    "cursor": "cursor",
    "filter": "filter",
}
"""Options whose value goes on the wire as it is."""

_OPTIONS = (
    click.option("-k", type=click.IntRange(min=1), help="How many hits; 10 if nothing else is configured."),
    click.option("--mode", type=click.Choice(["dense", "sparse", "hybrid"]), help="How to search."),
    click.option("--engine", "engines", multiple=True, metavar="ID", help="Ask only this engine; may be repeated."),
    click.option("--fusion", metavar="METHOD", help="rrf, weighted, convex or confidence."),
    click.option("--candidate-k", type=click.IntRange(min=1), help="How deep every engine is asked."),
    click.option("--rerank", metavar="METHOD", help="Rerank: a method, 'on' for whichever there is, or 'off'."),
    click.option("--rewrite", metavar="METHOD", help="Transform the query first: a method, or 'off'."),
    click.option("--mmr", type=click.FloatRange(0, 1), metavar="LAMBDA", help="Diversify; 1 is relevance alone."),
    click.option("--recency", metavar="FIELD:DAYS", help="Prefer what is new: a date field and its half-life."),
    click.option("--min-score", type=float, help="Leave out hits that score less."),
    click.option("--token-budget", type=click.IntRange(min=1), help="As many hits as fit into so many tokens."),
    click.option("--session", metavar="ID", help="Leave out what this session has been given already."),
    click.option("--cursor", help="The next page: the nextCursor of an answer to the same question."),
)

F = TypeVar("F", bound=Callable[..., Any])


def retrieve_options(command: F) -> F:
    """Gives a command the options of ``retrieve``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def retrieve_params(text: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters; what was not given is left to the gateway. Raises ``click.BadParameter``."""
    params: dict[str, Any] = {"query": text}
    params |= {wire: given[name] for name, wire in _PLAIN.items() if given.get(name) is not None}
    if given.get("engines"):
        params["_meta"] = {"x-gateway": {"engines": list(given["engines"])}}
    if given.get("fusion"):
        params["fusion"] = {"method": given["fusion"]}
    if given.get("rerank"):
        named = given["rerank"]
        params["rerank"] = False if named == "off" else {} if named == "on" else {"method": named}
    if given.get("rewrite"):
        params["rewrite"] = False if given["rewrite"] == "off" else given["rewrite"]
    if given.get("mmr") is not None:
        params["mmr"] = {"lambda": given["mmr"]}
    if given.get("recency"):
        params["recency"] = _recency(given["recency"])
    return params


def _recency(text: str) -> dict[str, Any]:
    field, colon, days = text.rpartition(":")
    try:
        number = float(days)
    except ValueError:
        number = 0.0
    if not colon or not field or not 0 < number < float("inf"):
        told = "give a date field and a number of days, such as published:30"
        raise click.BadParameter(told, param_hint="--recency")
    return {"field": field, "halfLifeDays": number}
