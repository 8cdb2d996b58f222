"""Fusion of the relation encoding into the decoder (Li et al. 2022, *Grammatically Derived Factual Relation Augmented
Neural Machine Translation*)."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Optional, Tuple

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_ctxgates.compat import EncoderLayer
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.layer_list import parse_layers

FusionChoice = ChoiceEnum(["none", "linear", "gate", "concat-gate", "transform"])
OperationChoice = ChoiceEnum(["fill", "multiply"])
RelationAblationChoice = ChoiceEnum(["none", "compare"])


@dataclass
class RelationFusionConfig(FairseqDataclass):
    """Options of the second encoding and its fusion."""

    relation_fusion: FusionChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "encode the source once more, with words that see only the words of their factual relations, and "
            "fuse it into the decoder this way (Li et al. 2022); the data directory needs the stream of `ctxgates "
            "relations`"
        },
    )
    relation_layers: Optional[str] = field(
        default=None,
        metadata={"help": "the decoder layers that it is fused into: all, 6 or 1,3-5; default: the top one"},
    )
    relation_lambda: float = field(
        default=0.4, metadata={"help": "weight of the relation context in the fusion linear, between 0 and 1"}
    )
    relation_operation: OperationChoice = field(  # type: ignore[valid-type]
        default="fill",
        metadata={
            "help": "what the relation mask does to the scores of attention outside of it: minus infinity (fill), or "
            "they are multiplied by 0 (multiply, equation 7 to the letter)"
        },
    )
    separate_relation_attention: bool = field(
        default=False,
        metadata={
            "help": "attend to the relation encoding with parameters of its own; default: those of the sentence's"
        },
    )
    relation_ablation: RelationAblationChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={"help": "what to take from that mechanism: the relation encoding is the ordinary one (compare)"},
    )


class RelationFusion(nn.Module):
    """Fuses the context of the sentence ŝ with that of its relation encoding s̃ (Li et al. 2022, equations 12 to 18).

    ===========  ==============================================================================
    linear       ŝ + λ s̃
    gate         g ŝ + (1 - g) s̃,   g = σ(W [ŝ; s̃] + b)
    concat-gate  o f + (W_f [ŝ; s̃]) (1 - f),   f = σ(W_f [ŝ; s̃] + b_f),   o = W_o [ŝ; s̃] + b_o
    transform    W [ŝ; s̃] + b
    ===========  ==============================================================================

    But for ``linear``, which has no parameters, each starts as the mean of the two contexts, so that a sentence without
    relations has its ordinary context at first.

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

    def forward(self, sentence: Tensor, relation: Tensor) -> Tensor:
        """
        Args:
            sentence: ŝ, (..., embed dim)
            relation: s̃, of the same shape

        Returns:
            what takes the place of ŝ, of the same shape
        """
        if self.kind == "linear":
            return sentence + self.weight * relation
        both = torch.cat([sentence, relation], dim=-1)
        if self.kind == "transform":
            transformed: Tensor = self.transform(both)
            return transformed
        if self.kind == "gate":
            return torch.lerp(relation, sentence, torch.sigmoid(self.gate(both)))
        projected = F.linear(both, self.gate.weight)  # W_f [ŝ; s̃]
        return torch.lerp(projected, self.transform(both), torch.sigmoid(projected + self.gate.bias))


def _linear(weight: Tensor) -> nn.Linear:
    """A linear layer that starts with this weight, (out, in), and without bias."""
    linear = nn.Linear(weight.size(1), weight.size(0))
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.zero_()
    return linear


class MultiplyingAttention(MultiheadAttention):
    """Self-attention whose scores are multiplied by a mask of ones and zeros (Li et al. 2022, equation 7 to the
    letter),

        softmax(M ⊙ q kᵀ / √d) v

    so that positions outside the mask have the score 0, and padding has none. Parameters are those of fairseq's.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        attn_mask: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """As fairseq's. With a mask, (batch · heads, length, length), bool, true outside of M, it returns no
        weights."""
        if attn_mask is None:
            return super().forward(query, key, value, key_padding_mask=key_padding_mask, **kwargs)
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
        return self.out_proj(context), None


class MultiplyingEncoderLayer(EncoderLayer):
    """fairseq's Transformer encoder layer with :class:`MultiplyingAttention`."""

    def build_self_attention(self, embed_dim: int, cfg: Any) -> MultiplyingAttention:
        """Attention of width ``embed_dim``, with the heads and dropout of the model's ``TransformerConfig``."""
        return MultiplyingAttention(
            embed_dim,
            cfg.encoder.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )


def both_masks(relation_mask: Tensor, heads: int) -> Tensor:
    """The attention masks of the encoder's two passes, which go through it as one batch: the ordinary one, then that
    under the relation mask.

    Args:
        relation_mask: M, (batch, length, length), true where a word may see another
        heads: how many attention heads there are

    Returns:
        (2 · batch · heads, length, length), bool, true where a word may not see another
    """
    hidden = torch.cat([torch.zeros_like(relation_mask), ~relation_mask])
    return hidden.repeat_interleave(heads, dim=0)


def relation_layers(cfg: Any) -> Tuple[int, ...]:
    """The decoder layers that relations are fused into, from 1 at the bottom.

    Raises:
        UserError: there are no such layers, λ is not between 0 and 1, or there are options of a fusion without one
    """
    mechanisms = cfg.mechanisms
    if mechanisms.relation_fusion == "none":
        _refuse_options_of_no_fusion(mechanisms)
        return ()
    if not 0 <= mechanisms.relation_lambda <= 1:
        raise UserError(f"--relation-lambda {mechanisms.relation_lambda}: it is between 0 and 1")
    if mechanisms.relation_layers is None:
        return (cfg.decoder.layers,)
    return parse_layers(mechanisms.relation_layers, cfg.decoder.layers, "--relation-layers")


def _refuse_options_of_no_fusion(mechanisms: Any) -> None:
    """Raise UserError for options that would do nothing: an experiment would be taken for another."""
    for option in fields(RelationFusionConfig):
        given = getattr(mechanisms, option.name)
        if option.name.startswith(("relation_", "separate_")) and given != option.default:
            raise UserError(
                f"--{option.name.replace('_', '-')} {given} needs --relation-fusion, which --arch fra_transformer sets"
            )


def encodes_relations(cfg: Any) -> bool:
    """Whether there is a second encoding: relations are fused, and Compare Fusion is off."""
    return bool(relation_layers(cfg)) and cfg.mechanisms.relation_ablation == "none"
