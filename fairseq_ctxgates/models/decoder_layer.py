"""The Transformer decoder layer, which puts the mechanisms' parts together."""

from __future__ import annotations

from functools import partial
from typing import Optional, Sequence, Tuple

from torch import Tensor

from fairseq_ctxgates.compat import TransformerDecoderLayerBase
from fairseq_ctxgates.mechanism import Mechanism
from fairseq_ctxgates.models.mechanism_parts import single_part
from fairseq_ctxgates.models.transformer_config import NestedConfig
from fairseq_ctxgates.modules.attention import EncodedSentence, IncrementalState, SentenceAttention, attend
from fairseq_ctxgates.modules.norm_order import SublayerNorm
from fairseq_ctxgates.modules.quantization_noise import add_quantization_noise
from fairseq_ctxgates.parts import Connection, LayerInput, Part, Parts, ResidualConnection, Returned


class ContextDecoderLayer(TransformerDecoderLayerBase):
    """One decoder layer: target context, source context, what connects them, feed-forward.

    With layer normalization in the place that :class:`~fairseq_ctxgates.modules.norm_order.NormOrder` gives it, and
    dropout after each sublayer,

        t  = x + self-attention(x)      the target context
        a  = attention(t, h)            the source context, which each of ``source_parts`` changes in turn
        u  = connection(t, a)           t + a, or what takes its place, such as a context gate
        c' = u + feed-forward(u)

    Its modules and parameter names are fairseq's, so that a plain Transformer's checkpoint fits. Mechanisms add parts.

    Args:
        cfg: the model's options
        number: the layer's number, from 1 at the bottom
    """

    def __init__(self, cfg: NestedConfig, number: int) -> None:
        super().__init__(cfg)
        self.number = number
        self.norm_order = cfg.decoder_norm_order
        mechanisms: Sequence[Mechanism] = [mechanism for mechanism in cfg.mechanisms if number in mechanism.layers]
        new_attention = partial(self.build_encoder_attention, self.embed_dim, cfg)
        self.source_parts = Parts(
            {mechanism.name: mechanism.source_part(number, cfg, new_attention) for mechanism in mechanisms}
        )
        connections = [mechanism.connection(number, cfg) for mechanism in mechanisms]
        self.connection: Connection = single_part(connections, default=ResidualConnection())
        # The names of what a layer can return beside x and attention, in the order in which it returns them.
        every_part: Sequence[Part] = (*self.source_parts.in_order(), self.connection)
        self.returnable = tuple(name for part in every_part for name in part.returnable)
        for part in every_part:
            add_quantization_noise(part, cfg.quant_noise.pq, cfg.quant_noise.pq_block_size)

    def build_encoder_attention(self, embed_dim: int, cfg: NestedConfig) -> SentenceAttention:
        """As fairseq's, but of the class whose memory the beams of a sentence share."""
        return SentenceAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor,
        incremental_state: Optional[IncrementalState] = None,
        self_attn_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        need_attn: bool = False,
        first_step: int = 0,
        returns: Tuple[str, ...] = (),
        **added: Tensor,
    ) -> Tuple[Optional[Tensor], ...]:
        """
        Args:
            x: c of the layer below, (target length, batch, embed dim); with k beams of each sentence, row i reads the
                sentence i // k of the encoder's output
            encoder_out: h, (source length, batch, embed dim)
            encoder_padding_mask: (batch, source length), true at padding
            self_attn_mask: (target length, target length), added to the scores
            self_attn_padding_mask: (batch, target length), true at padding
            need_attn: also return the attention over the sentence
            first_step: the number of the first target position in x
            returns: the names of gates and attention weights to return
            added: the tensors that mechanisms added to the encoder's output. Each is an argument of its own, because
                activation checkpointing does not see tensors inside other arguments

        Returns:
            c', (target length, batch, embed dim); attention, (heads, batch, target length, source length), or None; and
            for each name in ``self.returnable`` the tensor, or None where it is not asked for
        """
        sentence = EncodedSentence(encoder_out, encoder_padding_mask)
        layer_input = LayerInput(sentence, self.encoder_attn, added, first_step, incremental_state, returns)
        source_norm = SublayerNorm(self.norm_order, self.encoder_attn_layer_norm)
        returned: Returned = {}

        target = self.target_context(x, incremental_state, self_attn_mask, self_attn_padding_mask)
        query = source_norm.input(target)
        source, attention = attend(self.encoder_attn, query, sentence, incremental_state, need_attn)
        for part in self.source_parts.in_order():
            source, found = part(query, source, layer_input)
            returned.update(found)
        x, found = self.connection(target, self.dropout_module(source), query, source_norm)
        returned.update(found)
        x = self.feed_forward(x)
        return (x, attention, *(returned.get(name) if name in returns else None for name in self.returnable))

    def target_context(
        self,
        x: Tensor,
        incremental_state: Optional[IncrementalState],
        self_attn_mask: Optional[Tensor],
        self_attn_padding_mask: Optional[Tensor],
    ) -> Tensor:
        """The self-attention sublayer, which gives t."""
        norm = SublayerNorm(self.norm_order, self.self_attn_layer_norm)
        query = norm.input(x)
        attended, _ = self.self_attn(
            query=query,
            key=query,
            value=query,
            key_padding_mask=self_attn_padding_mask,
            incremental_state=incremental_state,
            need_weights=False,
            attn_mask=self_attn_mask,
        )
        return norm.add(x, self.dropout_module(attended))

    def feed_forward(self, x: Tensor) -> Tensor:
        """The feed-forward sublayer, which gives c'."""
        norm = SublayerNorm(self.norm_order, self.final_layer_norm)
        hidden = self.activation_fn(self.fc1(norm.input(x)))
        return norm.add(x, self.dropout_module(self.fc2(self.activation_dropout_module(hidden))))
