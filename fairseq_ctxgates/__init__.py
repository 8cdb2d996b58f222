"""fairseq-ctxgates: what ``--user-dir`` loads. Models that know which context to trust."""

from fairseq_ctxgates import compat  # noqa: F401  first: it lets fairseq load its own checkpoints
from fairseq_ctxgates import criterions, models, tasks  # noqa: F401  registers them with fairseq
