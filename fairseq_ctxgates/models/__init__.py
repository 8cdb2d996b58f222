"""Registers the architectures."""

from fairseq_ctxgates.models import context_transformer

__all__ = ["context_transformer"]
