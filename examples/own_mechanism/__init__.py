"""What ``--user-dir examples/own_mechanism`` loads: everything in fairseq_ctxgates, and one more mechanism."""

from fairseq_ctxgates.mechanisms import register_mechanism

from .domain_gate import DomainMechanism

register_mechanism(DomainMechanism)

# Imported last, because these register the architectures and the task with the options of every mechanism.
from fairseq_ctxgates import models, tasks  # noqa: E402

__all__ = ["DomainMechanism", "models", "tasks"]
