"""Context gates as a mechanism: their options and their place in a model (Li et al. 2020; Tu et al. 2017)."""

from dataclasses import dataclass, field
from typing import Optional, Union

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from fairseq_ctxgates.context_gates import gate_regularized_cross_entropy  # noqa: F401  registers the criterion
from fairseq_ctxgates.context_gates.context_gate import ContextGate
from fairseq_ctxgates.context_gates.gate_labels import GateLabels
from fairseq_ctxgates.context_gates.recurrent_gates import RecurrentContextGate
from fairseq_ctxgates.mechanism import RNNSEARCH, TRANSFORMER, Mechanism
from fairseq_ctxgates.parts import RecurrentWidths, TransformerOptions

ContextGateChoice = ChoiceEnum(["none", "interpolate"])
RecurrentContextGateChoice = ChoiceEnum(["none", "source", "target", "both"])


@dataclass
class ContextGateConfig(FairseqDataclass):
    """The option on the Transformer."""

    context_gate: ContextGateChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "what joins source and target context in a decoder layer: the residual connection (none), or a "
            "gate that interpolates between them (Li et al. 2020)"
        },
    )


@dataclass
class RecurrentContextGateConfig(FairseqDataclass):
    """The option on RNNSearch."""

    context_gate: RecurrentContextGateChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "what a gate z scales before it goes into the decoder's state (Tu et al. 2017): nothing (none), "
            "the source context, the target context, or both (the source with z, the target with 1 - z)"
        },
    )


class ContextGates(Mechanism[Union[ContextGateConfig, RecurrentContextGateConfig]]):
    """A gate between source and target context; its regularizer reads gate labels."""

    name = "context_gates"
    configs = {TRANSFORMER: ContextGateConfig, RNNSEARCH: RecurrentContextGateConfig}
    switch = "context_gate"
    kept_options = ("context_gate",)
    architectures = {
        TRANSFORMER: {"rcg_transformer": {"context_gate": "interpolate"}},
        RNNSEARCH: {"ctxgate_rnnsearch": {"context_gate": "both"}},
    }
    streams = (GateLabels,)

    def connection(self, layer: int, options: TransformerOptions) -> Optional[ContextGate]:
        return ContextGate(options)

    def recurrent_connection(self, widths: RecurrentWidths) -> Optional[RecurrentContextGate]:
        return RecurrentContextGate(self.options.context_gate, widths)
