"""Whether a ranking is any good: judgements, measures, and whether one is better than another."""

from gateway.evaluate.collection import Judgements, read_documents, read_qrels, read_topics
from gateway.evaluate.measures import ndcg, paired_p

__all__ = ["Judgements", "ndcg", "paired_p", "read_documents", "read_qrels", "read_topics"]
