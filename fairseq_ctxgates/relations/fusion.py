"""Fusion of the relation encoding into the decoder (FRA; Li, Zhu et al. 2022, *Grammatically Derived Factual Relation
Augmented Neural Machine Translation*)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Callable, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq_ctxgates.modules.attention import EncodedSentence, SentenceAttention, attend
from fairseq_ctxgates.modules.interpolation import interpolate
from fairseq_ctxgates.parts import LayerInput, Returned, SourceContextPart


class RelationFusion(nn.Module, ABC):
    """Fuses the context of the sentence, ŝ, with that of its relation encoding, s̃, into H (Li, Zhu et al. 2022,
    equations 12-18).

    A fusion that has parameters starts as the mean of the two contexts, so that a sentence without relations has its
    ordinary context at first.
    """

    @abstractmethod
    def forward(self, sentence_context: Tensor, relation_context: Tensor) -> Tensor:
        """
        Args:
            sentence_context: ŝ, (..., embed dim)
            relation_context: s̃, of the same shape

        Returns:
            H, of the same shape
        """


class LinearFusion(RelationFusion):
    """Linear interpolation, H = ŝ + λ s̃ (equation 12); ``weight`` is λ."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, sentence_context: Tensor, relation_context: Tensor) -> Tensor:
        return sentence_context + self.weight * relation_context


class GateFusion(RelationFusion):
    """Gate learning, H = g ŝ + (1 - g) s̃ with g = σ(W [ŝ; s̃] + b) (equations 13 and 14)."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.gate = _linear(torch.zeros(embed_dim, 2 * embed_dim))  # W, b

    def forward(self, sentence_context: Tensor, relation_context: Tensor) -> Tensor:
        g = torch.sigmoid(self.gate(_concatenate(sentence_context, relation_context)))
        return interpolate(start=relation_context, end=sentence_context, weight=g)


class ConcatGateFusion(RelationFusion):
    """Concat gate learning, H = o f + (W_f [ŝ; s̃]) (1 - f) with f = σ(W_f [ŝ; s̃] + b_f) and o = W_o [ŝ; s̃] + b_o
    (equations 15 to 17)."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.gate = _linear(_weight_of_mean(embed_dim))  # W_f, b_f
        self.transform = _linear(_weight_of_mean(embed_dim))  # W_o, b_o

    def forward(self, sentence_context: Tensor, relation_context: Tensor) -> Tensor:
        both = _concatenate(sentence_context, relation_context)
        projected = self.gate(both)
        f = torch.sigmoid(projected)
        o = self.transform(both)
        return interpolate(projected - self.gate.bias, o, f)  # equation 17 has W_f [ŝ; s̃] without b_f


class TransformFusion(RelationFusion):
    """Linear transformation, H = W [ŝ; s̃] + b (equation 18)."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.transform = _linear(_weight_of_mean(embed_dim))  # W, b

    def forward(self, sentence_context: Tensor, relation_context: Tensor) -> Tensor:
        transformed: Tensor = self.transform(_concatenate(sentence_context, relation_context))
        return transformed


# By the value of --relation-fusion: makes the fusion from the width of the contexts and from λ.
FUSIONS: Dict[str, Callable[[int, float], RelationFusion]] = {
    "linear": lambda embed_dim, weight: LinearFusion(weight),
    "gate": lambda embed_dim, weight: GateFusion(embed_dim),
    "concat-gate": lambda embed_dim, weight: ConcatGateFusion(embed_dim),
    "transform": lambda embed_dim, weight: TransformFusion(embed_dim),
}


def _concatenate(sentence_context: Tensor, relation_context: Tensor) -> Tensor:
    """[ŝ; s̃], (..., 2 · embed dim)."""
    return torch.cat([sentence_context, relation_context], dim=-1)


def _weight_of_mean(embed_dim: int) -> Tensor:
    """The matrix whose product with [ŝ; s̃] is the mean of both, (embed dim, 2 · embed dim)."""
    half = 0.5 * torch.eye(embed_dim)
    return torch.cat([half, half], dim=1)


def _linear(weight: Tensor) -> nn.Linear:
    """A linear layer that starts with this weight, (out, in), and with a bias of 0."""
    linear = nn.Linear(weight.size(1), weight.size(0))
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.zero_()
    return linear


class RelationContext(SourceContextPart):
    """Fuses attention over the relation encoding h' into the source context of a decoder layer (Li, Zhu et al. 2022,
    equation 11).

    Args:
        fusion: of the two contexts
        attention: over h'; a warm start makes it a copy of the layer's attention over the sentence. None: the layer's
            attention over the sentence reads h' too
        reads_relations: false in the ablation Compare Fusion, where the ordinary encoding takes the place of h'
    """

    warm_start_source = {"attention": "encoder_attn"}

    def __init__(self, fusion: RelationFusion, attention: Optional[SentenceAttention], reads_relations: bool) -> None:
        super().__init__()
        self.fusion = fusion
        self.attention = attention
        self.reads_relations = reads_relations

    def forward(self, query: Tensor, source: Tensor, layer_input: LayerInput) -> Tuple[Tensor, Returned]:
        """See :meth:`SourceContextPart.forward`."""
        relation = layer_input.sentence
        if self.reads_relations:
            relation = EncodedSentence(layer_input.added["relation_out"], relation.padding_mask)
        attention = layer_input.attention if self.attention is None else self.attention
        relation_context, _ = attend(attention, query, relation, layer_input.incremental_state, name="relations")
        return self.fusion(source, relation_context), {}
