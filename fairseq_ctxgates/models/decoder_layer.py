"""The Transformer decoder layer that the mechanisms are put together in."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor

from fairseq_ctxgates.context_gates.context_gate import ContextGate
from fairseq_ctxgates.inter_sentence.gate import InterSentenceGate
from fairseq_ctxgates.layer_list import parse_layers
from fairseq_ctxgates.modules.norm_order import NormOrder
from fairseq_ctxgates.relations.fusion import RelationFusion, relation_layers

IncrementalState = Dict[str, Dict[str, Any]]
RELATION_STATE = "relation_attention"  # where the incremental state has one of its own for attention over h'


class Memory(NamedTuple):
    """What attention reads: the encoding h of a sentence, (source length, batch, embed dim), and where its padding is,
    (batch, source length), or None."""

    states: Optional[Tensor]
    padding_mask: Optional[Tensor]


class LayerOutput(NamedTuple):
    """What a layer returns, a plain tuple once activation checkpointing has handled it. Gates: (target length, batch,
    embed dim); attention: (heads, batch, target length, source length); over the preceding sentence: (heads, batch,
    target length, preceding length)."""

    x: Tensor
    attention: Optional[Tensor]
    context_gate: Optional[Tensor]
    inter_sentence_gate: Optional[Tensor]
    preceding_attention: Optional[Tensor]


class ContextDecoderLayer(TransformerDecoderLayerBase):
    """One decoder layer: target context, source context, what connects them, feed-forward.

    Its parts and parameter names are fairseq's, so that a plain Transformer's checkpoint fits; ``context_gate`` is
    :class:`ContextGate` or None, ``inter_sentence_gate`` is :class:`InterSentenceGate` or None, ``relation_fusion`` is
    :class:`RelationFusion` or None. Without them the layer is fairseq's.

    Args:
        cfg: the model's ``TransformerConfig``, with the mechanisms' options as ``cfg.mechanisms``
        number: which layer this is, from 1 at the bottom
    """

    def __init__(self, cfg: Any, number: int) -> None:
        super().__init__(cfg)
        self.number = number
        self.norm_order = NormOrder(cfg.mechanisms.norm_order)
        self.context_gate = ContextGate(cfg) if cfg.mechanisms.context_gate != "none" else None
        self.inter_sentence_gate, self.preceding_attn = None, None
        if number in inter_sentence_layers(cfg):
            is_closed = cfg.mechanisms.inter_sentence_ablation == "closed"
            self.inter_sentence_gate = InterSentenceGate(self.embed_dim, self.embed_dim, is_closed)
            self.preceding_attn = self.build_encoder_attention(self.embed_dim, cfg)
        self.relation_fusion, self.relation_attn = None, None
        if number in relation_layers(cfg):
            options = cfg.mechanisms
            self.relation_fusion = RelationFusion(str(options.relation_fusion), self.embed_dim, options.relation_lambda)
            if options.separate_relation_attention:
                self.relation_attn = self.build_encoder_attention(self.embed_dim, cfg)

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
        self_attn_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        need_attn: bool = False,
        relation_out: Optional[Tensor] = None,
        preceding_out: Optional[Tensor] = None,
        preceding_padding_mask: Optional[Tensor] = None,
        preceding_context: Optional[Tensor] = None,
        need_preceding_attn: bool = False,
    ) -> LayerOutput:
        """
        Args:
            x: c of the layer below, (target length, batch, embed dim)
            encoder_out: h, or h_b where there is an inter-sentence gate, (source length, batch, embed dim)
            encoder_padding_mask: (batch, source length), true at padding
            self_attn_mask: (target length, target length), added to the scores
            self_attn_padding_mask: (batch, target length), true at padding
            need_attn: also return the attention over the sentence
            relation_out: h', the relation encoding of the sentence, of the shape of h, for a relation fusion
            preceding_out: h_a, the encoding of the preceding sentence, (preceding length, batch, embed dim), for an
                inter-sentence gate
            preceding_padding_mask: (batch, preceding length), true at padding
            preceding_context: what stands for c_a in the place of attention over the preceding sentence (an ablation)
            need_preceding_attn: also return the attention over the preceding sentence
        """
        target = self.target_context(x, incremental_state, self_attn_mask, self_attn_padding_mask)
        query = self.norm_order.input(self.encoder_attn_layer_norm, target)
        sentence, relation = Memory(encoder_out, encoder_padding_mask), Memory(relation_out, encoder_padding_mask)
        source, attention = attend(self.encoder_attn, query, sentence, incremental_state, need_attn)
        if self.relation_fusion is not None:
            source = self.relation_fusion(source, self.relation_context(query, relation, incremental_state))
        inter_sentence_gate, preceding_attention = None, None
        if self.inter_sentence_gate is not None:
            if preceding_context is None:
                preceding = Memory(preceding_out, preceding_padding_mask)
                preceding_context, preceding_attention = attend(
                    self.preceding_attn, query, preceding, incremental_state, need_preceding_attn
                )
            source, inter_sentence_gate = self.inter_sentence_gate(query, source, preceding_context)
        x, context_gate = self.connect(target, self.dropout_module(source), query)
        return LayerOutput(self.feed_forward(x), attention, context_gate, inter_sentence_gate, preceding_attention)

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

    def relation_context(
        self, query: Tensor, relation: Memory, incremental_state: Optional[IncrementalState]
    ) -> Tensor:
        """s̃, attention over the relation encoding, with the parameters of that over the sentence or its own (Li et al.
        2022, equation 11)."""
        if self.relation_attn is not None:
            return attend(self.relation_attn, query, relation, incremental_state)[0]
        # The same module twice: between decoding steps it keeps h' apart from h.
        apart = None if incremental_state is None else incremental_state.setdefault(RELATION_STATE, {})
        return attend(self.encoder_attn, query, relation, apart)[0]

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder what :meth:`relation_context` keeps apart; fairseq calls this of every module, and so has reordered
        the rest."""
        if self.relation_fusion is not None and self.relation_attn is None and RELATION_STATE in incremental_state:
            self.encoder_attn.reorder_incremental_state(incremental_state[RELATION_STATE], new_order)

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


def attend(
    attention: Any,
    query: Tensor,
    memory: Memory,
    incremental_state: Optional[IncrementalState] = None,
    need_weights: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """fairseq's attention over an encoded sentence, (target length, batch, embed dim), and its weights, (heads, batch,
    target length, source length), if asked for."""
    context, weights = attention(
        query=query,
        key=memory.states,
        value=memory.states,
        key_padding_mask=memory.padding_mask,
        incremental_state=incremental_state,
        # Keys and values are kept between decoding steps; without steps torch's own attention is faster.
        static_kv=incremental_state is not None or need_weights,
        need_weights=need_weights,
        need_head_weights=need_weights,
    )
    return context, weights


def inter_sentence_layers(cfg: Any) -> Tuple[int, ...]:
    """The decoder layers with an inter-sentence gate, from 1 at the bottom."""
    mechanisms = cfg.mechanisms
    if not mechanisms.inter_sentence_gate:
        return ()
    return parse_layers(mechanisms.inter_sentence_layers, cfg.decoder.layers, "--inter-sentence-layers")
