"""Registers the architectures."""

from fairseq_ctxgates.models import context_transformer, context_transformer_align, rnnsearch

__all__ = ["context_transformer", "context_transformer_align", "rnnsearch"]
