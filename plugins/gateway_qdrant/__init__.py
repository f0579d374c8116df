"""Qdrant as an engine: a server over REST (``url:``) or the engine inside this process (``path:``)."""
