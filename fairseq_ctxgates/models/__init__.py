"""Registers the architectures."""

from fairseq_ctxgates.models import context_transformer, rnnsearch

__all__ = ["context_transformer", "rnnsearch"]
