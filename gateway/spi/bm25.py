"""BM25 for engines that rank by words themselves, the same that the gateway reranks by."""

from gateway.fusion.bm25 import Index, words

__all__ = ["Index", "words"]
