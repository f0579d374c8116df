"""What ``rcp-gateway probe`` asks a Weaviate: its documentation and its versions differ in these."""

from __future__ import annotations

from gateway.spi.probe import Probe, finding
from gateway_weaviate.filters import Group, Leaf
from gateway_weaviate.schema import Collection, Property

__all__ = ["probes_of"]


def probes_of(collection: Collection, field: Property) -> list[Probe]:
    """Questions on one keyword property."""
    if not field.pushable:
        return []
    name = field.name
    here = "same other absent" if not field.multi else "both absent"
    lacking = frozenset(here.split()) - {"same", "both"}
    version = ".".join(map(str, collection.version))
    used = "the gateway uses it" if collection.has_not else f"this is {version}, and the gateway uses it from 1.33 on"
    asked = [
        Probe.ask(
            "does NotEqual select objects without the property?",
            Leaf(name, "NotEqual", "alpha"),
            here,
            finding(" ".join(lacking), "yes"),
            finding(
                " ".join(lacking - {"absent"}),
                "no: ne and nin would lose them, and no setting mends it: upgrade the server, or hide the property "
                "(fields: name: null)",
                f"fields: {{{name}: null}}",
                ok=False,
            ),
        ),
        Probe.ask(
            "does the server know Not?",
            Group("Not", (Leaf(name, "Equal", "alpha"),)),
            here,
            finding(" ".join(lacking), f"yes; {used}"),
            refused=finding("", f"no: {used}", ok=not collection.has_not),
        ),
    ]
    blank = "same blank absent" if not field.multi else "both empty absent"
    value = '""' if not field.multi else "[]"
    told = f"{value} counts as null" if field.multi else f"{value} counts as null: exists is checked here for texts"
    nulls = " ".join(sorted(set(blank.split()) - {"same", "both"}))
    asked.append(
        Probe.ask(
            f"is there a null index, and what is {value} in it?",
            Leaf(name, "IsNull", True),
            blank,
            finding(nulls, f"there is, and {told}"),
            finding("absent", f"there is, and {value} is a value in it", ok=not field.multi),
            refused=finding(
                "",
                "there is none: exists and the negation of orders are checked here; a collection made with "
                "indexNullState: true would do that itself",
                ok=not collection.null_index,
            ),
        )
    )
    if collection.null_index and not collection.has_not:
        asked.append(
            Probe.ask(
                "does IsNull find objects without the property?",
                Leaf(name, "IsNull", True),
                "absent",
                finding(
                    "absent",
                    "new ones, yes; if no property was added after objects had been written, promise so and less is "
                    "checked here",
                    "null_index_complete: true  # only if that is so",
                ),
                finding("", "no: leave null_index_complete off", "null_index_complete: false"),
            )
        )
    return asked
