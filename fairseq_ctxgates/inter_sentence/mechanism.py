"""The inter-sentence gate (ISG; Kuang and Xiong 2018) as a mechanism: its options and its place in a model."""

from dataclasses import dataclass, field
from typing import Callable, Dict, Optional, Tuple

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.concatenated_sentences import ConcatenatedSentences
from fairseq_ctxgates.inter_sentence.distance_embedding import DistanceEmbedding
from fairseq_ctxgates.inter_sentence.gate import (
    InterSentenceGate,
    PrecedingContext,
    RandomContext,
    RecurrentPrecedingContext,
    RecurrentRandomContext,
)
from fairseq_ctxgates.inter_sentence.preceding_sentences import NULL_LENGTH, PrecedingSentences
from fairseq_ctxgates.inter_sentence.random_context import sentence_keys
from fairseq_ctxgates.mechanism import RNNSEARCH, TRANSFORMER, EncoderInput, FurtherSentences, Mechanism
from fairseq_ctxgates.modules.attention import SentenceAttention
from fairseq_ctxgates.parts import EncodingPart, RecurrentWidths, TransformerOptions

AblationChoice = ChoiceEnum(["none", "null", "closed", "random"])


@dataclass
class InterSentenceGateConfig(FairseqDataclass):
    """The options, the same on both backbones."""

    inter_sentence_gate: bool = field(
        default=False,
        metadata={
            "help": "attend to the preceding source sentence as well, and let its context in through a gate (Kuang and "
            "Xiong 2018); the data directory needs the stream of `ctxgates preceding-sentences`"
        },
    )
    inter_sentence_layers: str = field(
        default="all", metadata={"help": "the decoder layers with the inter-sentence gate: all, 6 or 1,3-5"}
    )
    inter_sentence_gate_bias: float = field(
        default=0.0,
        metadata={
            "help": "initial bias b of the inter-sentence gate: at 0 the preceding sentence begins with half of the "
            "weight on average, at -3 with a twentieth"
        },
    )
    inter_sentence_context: int = field(
        default=1,
        metadata={
            "help": "how many preceding sentences the attention reads (the paper: one); if there are more, each is "
            "encoded by itself, and an embedding of its distance is added to its states"
        },
    )
    inter_sentence_ablation: AblationChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "ablation of a trained model: every preceding sentence is NULL (null), the gate z is 0 (closed), "
            "or the preceding sentence's context is random (random)"
        },
    )


class InterSentenceGating(Mechanism[InterSentenceGateConfig]):
    """Attention over the preceding source sentence, let into the source context through a gate."""

    name = "inter_sentence"
    configs = {TRANSFORMER: InterSentenceGateConfig, RNNSEARCH: InterSentenceGateConfig}
    switch = "inter_sentence_gate"
    layers_option = "inter_sentence_layers"
    initial_options = ("inter_sentence_gate_bias",)
    architectures = {
        TRANSFORMER: {"isg_transformer": {"inter_sentence_gate": True}},
        RNNSEARCH: {"isg_rnnsearch": {"inter_sentence_gate": True, "feedback_attention": True}},
    }
    streams = (PrecedingSentences, ConcatenatedSentences)

    def check(self) -> None:
        if self.options.inter_sentence_context < 1:
            raise UserError(f"--inter-sentence-context {self.options.inter_sentence_context}: it must be at least 1")

    @property
    def required_streams(self) -> Tuple[str, ...]:
        return (PrecedingSentences.name,)

    @property
    def context_size(self) -> int:
        return int(self.options.inter_sentence_context)

    def sentences(self, encoder_input: EncoderInput) -> Dict[str, FurtherSentences]:
        """The preceding sentences, none under the ablation ``random``."""
        if self.is_random:
            return {}
        return {
            "preceding": sentences_to_encode(encoder_input, self.context_size, self.options.inter_sentence_ablation)
        }

    def encoding_parts(self, width: int) -> Dict[str, EncodingPart]:
        return {"preceding": DistanceEmbedding(self.context_size, width)} if self.context_size > 1 else {}

    def tensors(self, encoder_input: EncoderInput) -> Dict[str, Tensor]:
        """Under the ablation ``random`` a key for each sentence, (batch,)."""
        if not self.is_random:
            return {}
        return {"sentence_keys": sentence_keys(encoder_input.source, encoder_input.dictionary.pad())}

    def source_part(
        self, layer: int, options: TransformerOptions, new_attention: Callable[[], SentenceAttention]
    ) -> Optional[PrecedingContext]:
        width = options.decoder.embed_dim
        part = RandomContext if self.is_random else PrecedingContext
        return part(layer, new_attention(), self.gate(width, width))

    def recurrent_source_part(self, widths: RecurrentWidths) -> RecurrentPrecedingContext:
        part = RecurrentRandomContext if self.is_random else RecurrentPrecedingContext
        return part(widths, self.gate(widths.state, widths.context))

    def gate(self, state_dim: int, context_dim: int) -> InterSentenceGate:
        """The gate of these widths."""
        return InterSentenceGate(state_dim, context_dim, self.is_closed, self.options.inter_sentence_gate_bias)

    @property
    def is_ablated(self) -> bool:
        return self.is_closed or self.is_random

    @property
    def is_closed(self) -> bool:
        """Whether an ablation holds the gate at 0."""
        return self.options.inter_sentence_ablation == "closed"

    @property
    def is_random(self) -> bool:
        """Whether an ablation puts random contexts in place of those of the preceding sentence."""
        return self.options.inter_sentence_ablation == "random"


def sentences_to_encode(encoder_input: EncoderInput, context_size: int, ablation: str) -> FurtherSentences:
    """The preceding sentences to encode, for a model that reads ``context_size`` of them. With the ablation ``null``
    each source has one, (eos, eos, eos), like a document's first sentence.

    Raises:
        ValueError: the batch has no preceding sentences.
        UserError: the batch has several for each source, and a criterion, for example, has doubled its rows.
    """
    tokens = encoder_input.require("preceding_tokens")
    if ablation == "null":
        return FurtherSentences(torch.full_like(tokens[:, :1], encoder_input.dictionary.eos()).repeat(1, NULL_LENGTH))
    distances = encoder_input.inputs.get("preceding_distances")
    if distances is None:
        return FurtherSentences(tokens)
    if encoder_input.inputs.get("preceding_batch_size", len(tokens)) != len(tokens):
        raise UserError(
            "several preceding sentences (--inter-sentence-context) cannot be combined with what changes the "
            "rows of a batch, such as --criterion label_smoothed_cross_entropy_with_rdrop: give another criterion, or "
            "read one"
        )
    # The batch may have more for another model of an ensemble.
    distances = distances.masked_fill(distances > context_size, 0)
    return FurtherSentences(tokens, encoder_input.inputs["preceding_groups"], distances)
