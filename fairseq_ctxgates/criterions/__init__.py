"""Registers the criterion ``gate_regularized_cross_entropy``."""

from fairseq_ctxgates.criterions import gate_regularized_cross_entropy

__all__ = ["gate_regularized_cross_entropy"]
