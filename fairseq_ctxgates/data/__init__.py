"""Extra data beside source and target. ``STREAMS`` lists every kind of side stream; a new one is registered here."""

from typing import Tuple, Type

from fairseq_ctxgates.data.concatenated_sentences import ConcatenatedSentences
from fairseq_ctxgates.data.gate_labels import GateLabels
from fairseq_ctxgates.data.preceding_sentences import PrecedingSentences
from fairseq_ctxgates.data.relations import Relations
from fairseq_ctxgates.data.side_stream import SideStream

STREAMS: Tuple[Type[SideStream], ...] = (GateLabels, PrecedingSentences, ConcatenatedSentences, Relations)
