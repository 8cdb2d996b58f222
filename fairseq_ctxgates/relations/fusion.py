"""Fusion of the relation encoding into the decoder (FRA; Li, Zhu et al. 2022, *Grammatically Derived Factual Relation
Augmented Neural Machine Translation*)."""

from __future__ import annotations

import math
from typing import Optional, Tuple

import torch
from fairseq import utils
from torch import Tensor, nn

from fairseq_ctxgates.modules.attention import (
    EncodedSentence,
    IncrementalState,
    RenamedAttention,
    SentenceAttention,
    attend,
)
from fairseq_ctxgates.modules.interpolation import interpolate
from fairseq_ctxgates.parts import LayerInput, Returned, SourceContextPart

STATE_NAME = "relation_attention"  # the entry of the incremental state for attention over h'


class RelationFusion(nn.Module):
    """Fuses the context of the sentence ŝ with that of its relation encoding s̃ (Li, Zhu et al. 2022, equations 12-18).

    ===========  ==============================================================================
    linear       ŝ + λ s̃
    gate         g ŝ + (1 - g) s̃,   g = σ(W [ŝ; s̃] + b)
    concat-gate  o f + (W_f [ŝ; s̃]) (1 - f),   f = σ(W_f [ŝ; s̃] + b_f),   o = W_o [ŝ; s̃] + b_o
    transform    W [ŝ; s̃] + b
    ===========  ==============================================================================

    Except for ``linear``, which has no parameters, each starts as the mean of the two contexts, so that a sentence
    without relations has its ordinary context at first.

    Args:
        kind: the name in the table
        embed_dim: d, the width of the contexts
        weight: λ
    """

    def __init__(self, kind: str, embed_dim: int, weight: float) -> None:
        super().__init__()
        self.kind = kind
        self.weight = weight
        half = 0.5 * torch.eye(embed_dim)
        mean = torch.cat([half, half], dim=1)
        if kind in ("gate", "concat-gate"):
            self.gate = _linear(mean if kind == "concat-gate" else torch.zeros_like(mean))  # W, b, or W_f, b_f
        if kind in ("transform", "concat-gate"):
            self.transform = _linear(mean)  # W, b, or W_o, b_o

    def forward(self, sentence_context: Tensor, relation_context: Tensor) -> Tensor:
        """
        Args:
            sentence_context: ŝ, (..., embed dim)
            relation_context: s̃, of the same shape

        Returns:
            the fused context, of the same shape
        """
        if self.kind == "linear":
            return sentence_context + self.weight * relation_context
        both = torch.cat([sentence_context, relation_context], dim=-1)
        if self.kind == "transform":
            transformed: Tensor = self.transform(both)
            return transformed
        if self.kind == "gate":
            return interpolate(relation_context, sentence_context, torch.sigmoid(self.gate(both)))
        projected = self.gate(both)  # W_f [ŝ; s̃] + b_f
        without_bias = projected - self.gate.bias  # equation 17 has W_f [ŝ; s̃] there
        return interpolate(without_bias, self.transform(both), torch.sigmoid(projected))


def _linear(weight: Tensor) -> nn.Linear:
    """A linear layer that starts with this weight, (out, in), and without bias."""
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
    """

    warm_start_source = {"attention": "encoder_attn"}

    def __init__(self, fusion: RelationFusion, attention: Optional[SentenceAttention]) -> None:
        super().__init__()
        self.fusion = fusion
        self.attention = attention

    def forward(self, query: Tensor, source: Tensor, layer_input: LayerInput) -> Tuple[Tensor, Returned]:
        """See :meth:`SourceContextPart.forward`. If there is no relation encoding, the ordinary one takes its place
        (Compare Fusion)."""
        sentence = layer_input.sentence
        relation = EncodedSentence(layer_input.added.get("relation_out", sentence.states), sentence.padding_mask)
        return self.fusion(source, self.relation_context(query, relation, layer_input)), {}

    def relation_context(self, query: Tensor, relation: EncodedSentence, layer_input: LayerInput) -> Tensor:
        """s̃, of the shape of the query."""
        if self.attention is not None:
            return attend(self.attention, query, relation, layer_input.incremental_state)[0]
        # One attention reads both encodings: between decoding steps it keeps h' in a state apart from that of h.
        state = layer_input.incremental_state
        own_state = None if state is None else state.setdefault(STATE_NAME, {})
        return attend(layer_input.attention, query, relation, own_state)[0]

    def reorder_state(
        self, incremental_state: IncrementalState, new_order: Tensor, attention: SentenceAttention
    ) -> None:
        if self.attention is None and STATE_NAME in incremental_state:
            attention.reorder_incremental_state(incremental_state[STATE_NAME], new_order)


class MultiplyingAttention(RenamedAttention):
    """Self-attention whose scores are multiplied by a mask of ones and zeros (Li, Zhu et al. 2022, equation 8, with
    the product of equation 7),

        softmax(M ⊙ q kᵀ / √d_k) v

    so that positions outside the mask have the score 0. Padding is masked out. The parameters are those of fairseq's
    attention.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        attn_mask: Optional[Tensor] = None,
        need_weights: bool = True,
        **kwargs: object,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """As fairseq's, except that the mask is (batch · heads, length, length), bool, true outside of M. The weights
        that are returned are the mean over the heads, (batch, length, length)."""
        if attn_mask is None:
            kwargs.update(key_padding_mask=key_padding_mask, need_weights=need_weights)
            return super().forward(query, key, value, **kwargs)
        length, batch, _ = query.shape
        heads = [
            projection(x).view(length, batch * self.num_heads, self.head_dim).transpose(0, 1)
            for projection, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        ]
        scores = torch.bmm(heads[0], heads[1].transpose(1, 2)) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(attn_mask, 0.0)
        if key_padding_mask is not None:
            is_padding = key_padding_mask[:, None, None].expand(-1, self.num_heads, 1, -1).reshape(-1, 1, length)
            scores = scores.masked_fill(is_padding, -math.inf)
        weights = self.dropout_module(utils.softmax(scores, dim=-1).type_as(scores))
        context = torch.bmm(weights, heads[2]).transpose(0, 1).reshape(length, batch, -1)
        mean = weights.view(batch, self.num_heads, length, length).mean(dim=1) if need_weights else None
        return self.out_proj(context), mean
