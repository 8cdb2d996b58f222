"""The one list of mechanisms. Models, task and command line read this list, and name no mechanism themselves."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import List, Set, Tuple, Type

from fairseq_ctxgates.configuration import as_flag
from fairseq_ctxgates.context_gates.mechanism import ContextGates
from fairseq_ctxgates.data.side_stream import SideStream
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.mechanism import InterSentenceGating
from fairseq_ctxgates.mechanism import Mechanism
from fairseq_ctxgates.relations.mechanism import FactualRelations
from fairseq_ctxgates.smoothing.mechanism import EmbeddingSmoothing

# In the order in which their parts are applied.
MECHANISMS: Tuple[Type[Mechanism], ...] = (EmbeddingSmoothing, FactualRelations, InterSentenceGating, ContextGates)

_own: List[Type[Mechanism]] = []


def all_mechanisms() -> Tuple[Type[Mechanism], ...]:
    """The four papers' mechanisms, then those of :func:`register_mechanism`."""
    return (*MECHANISMS, *_own)


def all_streams() -> Tuple[Type[SideStream], ...]:
    """The side streams of all mechanisms."""
    return tuple(stream for mechanism in all_mechanisms() for stream in mechanism.streams)


def register_mechanism(mechanism: Type[Mechanism]) -> None:
    """Add a mechanism of your own to every architecture of its backbones, before they are registered with fairseq.

    A ``--user-dir`` calls this for each of its mechanisms, and then imports :mod:`fairseq_ctxgates.models` and
    :mod:`fairseq_ctxgates.tasks`.

    Raises:
        UserError: the architectures are registered already, or a name is taken.
    """
    if "fairseq_ctxgates.models" in sys.modules or "fairseq_ctxgates.tasks" in sys.modules:
        raise UserError(
            f"{mechanism.__name__} is registered too late: call register_mechanism before fairseq_ctxgates.models and "
            f"fairseq_ctxgates.tasks are imported"
        )
    for other in all_mechanisms():
        taken = _names(mechanism) & _names(other)
        if taken:
            raise UserError(
                f"{mechanism.__name__} and {other.__name__} both have {', '.join(sorted(taken))}: rename it"
            )
    _own.append(mechanism)


def _names(mechanism: Type[Mechanism]) -> Set[str]:
    """What no two mechanisms may share: their name, the names of their streams and of what these add to a batch, their
    options as flags, and their architectures."""
    configs = [*mechanism.configs.values(), *(stream.Config for stream in mechanism.streams)]
    options = {option.name for config in configs for option in fields(config)} - {"_name"}
    streams = (f"the stream {stream.name!r}" for stream in mechanism.streams)
    inputs = (f"the input {name!r}" for stream in mechanism.streams for name in stream.inputs)
    architectures = (f"--arch {name}" for added in mechanism.architectures.values() for name in added)
    return {f"the name {mechanism.name!r}", *streams, *inputs, *map(as_flag, options), *architectures}
