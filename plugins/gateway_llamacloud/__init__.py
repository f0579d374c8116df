"""LlamaCloud's retrieval API in both directions: an engine that calls it, a facade that serves it. See README.md."""
