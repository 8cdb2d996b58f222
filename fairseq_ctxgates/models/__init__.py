"""Registers the architectures."""

from fairseq_ctxgates.models import context_transformer  # noqa: F401
