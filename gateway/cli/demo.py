"""``demo``: the whole way once, over real HTTP, with what each engine said on its own."""

from __future__ import annotations

from gateway.app import engine_specs, open_gateway
from gateway.cli.add import add_documents, narrowed, read_documents
from gateway.cli.client import Client, here, remote
from gateway.cli.render import console, hits_table, print_hits, say
from gateway.cli.serve import over_http
from gateway.config import GatewayConfig
from gateway.errors import RcpError
from gateway.plugins import Plugins

__all__ = ["run_demo"]

QUESTION = "What happens when one engine fails?"
_K = 3


async def run_demo(config: GatewayConfig, plugins: Plugins, question: str | None) -> int:
    """Fills the writable engines with the project's documents, serves, asks, prints. Leaves nothing running."""
    await _fill(config, plugins)
    asked = question or QUESTION
    async with open_gateway(config, plugins) as gateway, over_http(gateway, port=0) as address:
        url = f"{address.url}{config.http.base}"
        say(f"serving {url}")
        say(f"asking  {asked}\n")
        async with remote(url) as client:
            for id, member in gateway.fleet.members.items():
                if member.capabilities.retrieve is not None:
                    await _ask_one(client, id, asked)
            console().print("[bold]fused[/bold]")
            print_hits(await client.call("retrieve", {"query": asked, "k": 5}), paged=False)
    say("")
    say(f"serve it yourself:  rcp-gateway serve -c {config.source}")
    return 0


async def _fill(config: GatewayConfig, plugins: Plugins) -> None:
    """Adds README and docs to every writable engine; adding again replaces, so a second run changes nothing."""
    paths = [path for name in ("README.md", "docs") if (path := config.base_dir / name).exists()]
    documents = read_documents(paths, config.base_dir)
    for spec in engine_specs(config, plugins):
        index = spec.offers.index
        if index is not None and index.writable:
            async with here(narrowed(config, plugins, spec.settings.id), plugins) as client:
                await add_documents(client, documents, spec.settings.id)


async def _ask_one(client: Client, id: str, question: str) -> None:
    """What one engine says; one that fails must not end the demonstration, since that is part of it."""
    params = {"query": question, "k": _K, "_meta": {"x-gateway": {"engines": [id]}}}
    try:
        result = await client.call("retrieve", params)
    except RcpError as error:
        say(f"engine {id}: {error.message}")
        return
    console().print(hits_table(result.get("hits") or [], title=f"engine {id}", own_score=True))
