"""Engines that are models: embedding services, and an embedder that needs no service at all."""
