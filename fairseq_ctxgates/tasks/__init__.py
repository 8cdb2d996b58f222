"""Registers the task ``context_translation``."""

from fairseq_ctxgates.tasks import context_translation

__all__ = ["context_translation"]
