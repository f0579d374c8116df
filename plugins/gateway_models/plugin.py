"""What this plugin registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.spi import EngineKind, hookimpl
from gateway_models.embeddings import EmbeddingsKind
from gateway_models.llm import LlmKind
from gateway_models.onnx import OnnxEmbedderKind, OnnxRerankerKind
from gateway_models.reranker import RerankerKind
from gateway_models.static import StaticEmbedderKind

__all__ = ["gateway_engine_kinds"]


@hookimpl
def gateway_engine_kinds() -> Sequence[EngineKind[Any]]:
    return [StaticEmbedderKind(), EmbeddingsKind(), RerankerKind(), LlmKind(), OnnxEmbedderKind(), OnnxRerankerKind()]
