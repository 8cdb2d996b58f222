"""fairseq-ctxgates: what ``--user-dir`` loads. Models that know which context to trust."""

# compat comes first: it lets fairseq load its own checkpoints. The others register themselves with fairseq.
from fairseq_ctxgates import compat, models, tasks
from fairseq_ctxgates.context_gates import gate_regularized_cross_entropy

__all__ = ["compat", "gate_regularized_cross_entropy", "models", "tasks"]
