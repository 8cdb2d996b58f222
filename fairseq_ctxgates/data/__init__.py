"""Extra data beside source and target. ``STREAMS`` lists every kind of side stream; a new one is registered here."""

from typing import Tuple, Type

from fairseq_ctxgates.context_gates.gate_labels import GateLabels
from fairseq_ctxgates.data.side_stream import SideStream
from fairseq_ctxgates.inter_sentence.concatenated_sentences import ConcatenatedSentences
from fairseq_ctxgates.inter_sentence.preceding_sentences import PrecedingSentences
from fairseq_ctxgates.relations.stream import Relations

STREAMS: Tuple[Type[SideStream], ...] = (GateLabels, PrecedingSentences, ConcatenatedSentences, Relations)
