"""fairseq-ctxgates: what ``--user-dir`` loads. Models that know which context to trust.

fairseq itself imports the folders ``models`` and ``tasks`` of a ``--user-dir``, and they register what is in them. A
``--user-dir`` with mechanisms of its own registers these first: see :func:`.mechanisms.register_mechanism`.
"""

from fairseq_ctxgates import compat  # first, since it says what is wrong if fairseq cannot be used
from fairseq_ctxgates.checkpoints import in_fairseq  # lets fairseq load its own checkpoints
from fairseq_ctxgates.version import __version__

__all__ = ["__version__", "compat", "in_fairseq"]
