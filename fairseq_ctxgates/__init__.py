"""fairseq-ctxgates: what ``--user-dir`` loads. Models that know which context to trust."""

# compat comes first: it lets fairseq load its own checkpoints. The others register themselves with fairseq.
from fairseq_ctxgates import compat, criterions, models, tasks

__all__ = ["compat", "criterions", "models", "tasks"]
