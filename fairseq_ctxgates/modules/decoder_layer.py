"""The Transformer decoder layer that the mechanisms are put together in."""

from typing import Any, Dict, Optional, Tuple

from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor

from fairseq_ctxgates.modules.context_gate import ContextGate
from fairseq_ctxgates.modules.norm_order import NormOrder

IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]


class ContextDecoderLayer(TransformerDecoderLayerBase):
    """One decoder layer: target context, source context, what connects them, feed-forward.

    Its parts and parameter names are fairseq's, so that a plain Transformer's checkpoint fits; ``context_gate`` is
    :class:`ContextGate` or None, in which case the layer is fairseq's.

    Args:
        cfg: the model's ``TransformerConfig``, with the mechanisms' options as ``cfg.mechanisms``
        number: which layer this is, from 1 at the bottom
    """

    def __init__(self, cfg: Any, number: int) -> None:
        super().__init__(cfg)
        self.number = number
        self.norm_order = NormOrder(cfg.mechanisms.norm_order)
        self.context_gate = ContextGate(cfg) if cfg.mechanisms.context_gate != "none" else None

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
        self_attn_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        need_attn: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """
        Args:
            x: c of the layer below, (target length, batch, embed dim)
            encoder_out: h, (source length, batch, embed dim)
            encoder_padding_mask: (batch, source length), true at padding
            self_attn_mask: (target length, target length), added to the scores
            self_attn_padding_mask: (batch, target length), true at padding
            need_attn: also return the attention over the source

        Returns:
            c' of the shape of x; the attention over the source, (heads, batch, target length, source length), or None;
            the context gate z of the shape of x, or None
        """
        target = self.target_context(x, incremental_state, self_attn_mask, self_attn_padding_mask)
        query = self.norm_order.input(self.encoder_attn_layer_norm, target)
        source, attention = self.source_context(query, encoder_out, encoder_padding_mask, incremental_state, need_attn)
        x, gate = self.connect(target, source, query)
        return self.feed_forward(x), attention, gate

    def target_context(
        self,
        x: Tensor,
        incremental_state: Optional[IncrementalState],
        self_attn_mask: Optional[Tensor],
        self_attn_padding_mask: Optional[Tensor],
    ) -> Tensor:
        """The self-attention sublayer, which gives t."""
        query = self.norm_order.input(self.self_attn_layer_norm, x)
        attended, _ = self.self_attn(
            query=query,
            key=query,
            value=query,
            key_padding_mask=self_attn_padding_mask,
            incremental_state=incremental_state,
            need_weights=False,
            attn_mask=self_attn_mask,
        )
        return self.norm_order.add(self.self_attn_layer_norm, x, self.dropout_module(attended))

    def source_context(
        self,
        query: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Optional[Tensor],
        incremental_state: Optional[IncrementalState],
        need_attn: bool,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attention over the sentence, att(t, h), before any normalisation, and its weights if asked for."""
        attended, attention = self.encoder_attn(
            query=query,
            key=encoder_out,
            value=encoder_out,
            key_padding_mask=encoder_padding_mask,
            incremental_state=incremental_state,
            # Keys and values are kept between decoding steps; without steps torch's own attention is faster.
            static_kv=incremental_state is not None or need_attn,
            need_weights=need_attn,
            need_head_weights=need_attn,
        )
        return self.dropout_module(attended), attention

    def connect(self, target: Tensor, source: Tensor, target_input: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        """Join t and att(t, h): by the residual connection, or by the context gate, which also gives z."""
        if self.context_gate is None:
            return self.norm_order.add(self.encoder_attn_layer_norm, target, source), None
        return self.context_gate(target, self.norm_order.branch(self.encoder_attn_layer_norm, source), target_input)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The feed-forward sublayer, which gives c'."""
        hidden = self.activation_fn(self.fc1(self.norm_order.input(self.final_layer_norm, x)))
        branch = self.dropout_module(self.fc2(self.activation_dropout_module(hidden)))
        return self.norm_order.add(self.final_layer_norm, x, branch)
