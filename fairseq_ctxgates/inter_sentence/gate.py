"""The inter-sentence gate (ISG; Kuang and Xiong 2018, *Fusing Recency into NMT with an Inter-Sentence Gate Model*)."""

from __future__ import annotations

from typing import ClassVar, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq_ctxgates.inter_sentence.random_context import random_context
from fairseq_ctxgates.modules.additive_attention import AdditiveAttention, AttentionMemory, weighted_sum
from fairseq_ctxgates.modules.attention import EncodedSentence, SentenceAttention, attend
from fairseq_ctxgates.modules.interpolation import interpolate
from fairseq_ctxgates.parts import LayerInput, RecurrentSourcePart, RecurrentWidths, Returned, SourceContextPart

GATES, ATTENTION = "inter_sentence_gates", "preceding_attention"  # what the parts return


class GateTerms(NamedTuple):
    """What a context c is in the two equations of :class:`InterSentenceGate`, (..., context dim) each.

    Attributes:
        in_gate: C_b c_b, or C_a c_a
        in_mixture: C_2 c_b, or C_1 c_a
    """

    in_gate: Tensor
    in_mixture: Tensor


class InterSentenceGate(nn.Module):
    """Mixes the context of the sentence c_b with that of the sentence before it, c_a.

    Computes, after Kuang and Xiong 2018, equations 9 and 10,

        z = σ(U_z q + C_b c_b + C_a c_a + b),   c = C_1 c_a ⊙ z + C_2 c_b ⊙ (1 - z)

    where q is the decoder's state; b is not in the paper. In a Transformer layer q is the target context as attention
    reads it (normalized in a pre-norm layer). In RNNSearch it is s_{t-1}; :class:`RecurrentPrecedingContext` adds
    W_z y_{t-1} to U_z q. C_2 starts as the identity, so that with z = 0 the gate gives the sentence's own context.

    Args:
        state_dim: width of q
        context_dim: width of c_a, c_b, z and c
        closed: z = 0, whatever is learned (an ablation)
        initial_bias: the initial value of b
    """

    def __init__(self, state_dim: int, context_dim: int, closed: bool = False, initial_bias: float = 0.0) -> None:
        super().__init__()
        self.from_state = nn.Linear(state_dim, context_dim)  # U_z, b
        self.from_sentence = nn.Linear(context_dim, context_dim, bias=False)  # C_b
        self.from_preceding = nn.Linear(context_dim, context_dim, bias=False)  # C_a
        self.preceding_proj = nn.Linear(context_dim, context_dim, bias=False)  # C_1
        self.sentence_proj = nn.Linear(context_dim, context_dim, bias=False)  # C_2
        self.closed = closed
        for linear in (self.from_state, self.from_sentence, self.from_preceding, self.preceding_proj):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.constant_(self.from_state.bias, initial_bias)
        nn.init.eye_(self.sentence_proj.weight)

    def forward(self, state: Tensor, sentence_context: Tensor, preceding_context: Tensor) -> Tuple[Tensor, Tensor]:
        """
        Args:
            state: q, (..., state dim)
            sentence_context: c_b, (..., context dim)
            preceding_context: c_a, of the same shape

        Returns:
            c and z, each of the shape of c_b; z is the weight of the preceding sentence, between 0 and 1
        """
        sentence, preceding = self.sentence_terms(sentence_context), self.preceding_terms(preceding_context)
        return self.mix(self.from_state(state), sentence, preceding)

    def sentence_terms(self, context: Tensor) -> GateTerms:
        """C_b c_b and C_2 c_b."""
        return GateTerms(self.from_sentence(context), self.sentence_proj(context))

    def preceding_terms(self, context: Tensor) -> GateTerms:
        """C_a c_a and C_1 c_a."""
        return GateTerms(self.from_preceding(context), self.preceding_proj(context))

    def mix(self, state_term: Tensor, sentence: GateTerms, preceding: GateTerms) -> Tuple[Tensor, Tensor]:
        """c and z, from U q + b, the :meth:`sentence_terms` and the :meth:`preceding_terms`."""
        argument = state_term + sentence.in_gate + preceding.in_gate
        z = torch.zeros_like(argument) if self.closed else torch.sigmoid(argument)
        return interpolate(sentence.in_mixture, preceding.in_mixture, z), z


class PrecedingContext(SourceContextPart):
    """Lets the preceding sentence into the source context of a Transformer's decoder layer.

    Attention over the preceding sentence, with parameters of its own, gives c_a; :class:`InterSentenceGate` mixes it
    with c_b. In a warm start this attention is a copy of the layer's attention over the sentence.

    Args:
        layer: its number, from 1 at the bottom
        attention: over the preceding sentence
        gate: mixes the contexts
    """

    gates = (GATES,)
    attentions: ClassVar[Tuple[str, ...]] = (ATTENTION,)
    warm_start_source = {"attention": "encoder_attn"}

    def __init__(self, layer: int, attention: SentenceAttention, gate: InterSentenceGate) -> None:
        super().__init__()
        self.layer = layer
        self.gate = gate
        self.attention = attention

    def forward(self, query: Tensor, source: Tensor, layer_input: LayerInput) -> Tuple[Tensor, Returned]:
        """See :meth:`SourceContextPart.forward`."""
        preceding_context, weights = self.preceding_context(query, layer_input)
        context, z = self.gate(query, source, preceding_context)
        return context, {GATES: z} if weights is None else {GATES: z, ATTENTION: weights}

    def preceding_context(self, query: Tensor, layer_input: LayerInput) -> Tuple[Tensor, Optional[Tensor]]:
        """c_a, (target length, batch, embed dim), and the weights of attention, (heads, batch, target length, preceding
        length), if asked for."""
        added = layer_input.added
        preceding = EncodedSentence(added["preceding_out"], added["preceding_padding_mask"])
        return attend(self.attention, query, preceding, layer_input.incremental_state, ATTENTION in layer_input.returns)


class RandomContext(PrecedingContext):
    """The ablation ``random`` on the Transformer: c_a is random. The attention is not read, but remains, so that a
    trained model's parameters fit."""

    attentions = ()

    def preceding_context(self, query: Tensor, layer_input: LayerInput) -> Tuple[Tensor, None]:
        """c_a, (target length, batch, embed dim), see :func:`random_context`; there are no weights."""
        keys, steps = layer_input.added["sentence_keys"], step_numbers(layer_input.first_step, query)
        return random_context(keys, self.layer, steps, query.size(-1)).to(query), None


class RecurrentPrecedingContext(RecurrentSourcePart):
    """Lets the preceding sentence into the source context of RNNSearch (Kuang and Xiong 2018, equations 9 and 10),

        z_t = σ(U_z s_{t-1} + W_z y_{t-1} + C_b c_b + C_a c_a + b),   C_1 c_a ⊙ z_t + C_2 c_b ⊙ (1 - z_t)

    Attention over the preceding sentence, with parameters of its own, gives c_a. U_z belongs to ``gate``, and W_z to
    this part. This context takes the place of c_t in the recurrent unit, whose U and W are other matrices; with
    feedback attention that is equation 8.

    Args:
        widths: of y_{t-1}, s_t and the contexts
        gate: mixes the contexts
    """

    gates = (GATES,)
    attentions: ClassVar[Tuple[str, ...]] = (ATTENTION,)
    warm_start_source = {"attention": "attention"}

    def __init__(self, widths: RecurrentWidths, gate: InterSentenceGate) -> None:
        super().__init__()
        self.gate = gate
        self.from_word = nn.Linear(widths.word, widths.context, bias=False)  # W_z
        nn.init.xavier_uniform_(self.from_word.weight)
        self.attention = AdditiveAttention(widths.state, widths.context, widths.state)

    def read(self, added: Mapping[str, Tensor]) -> Optional[AttentionMemory]:
        """The memory of the preceding sentences."""
        h = added["preceding_out"]
        return AttentionMemory(self.attention.key_proj(h), self.preceding_terms(h), added["preceding_padding_mask"])

    def step_inputs(self, words: Tensor, added: Mapping[str, Tensor], first_step: int) -> Tensor:
        """W y_{t-1}, (target length, rows, context dim)."""
        terms: Tensor = self.from_word(words)
        return terms

    def context_terms(self, context: Tensor) -> Tensor:
        """C_b h and C_2 h side by side, (..., 2 · context dim), of annotations or contexts h, (..., context dim)."""
        return torch.cat(self.gate.sentence_terms(context), dim=-1)

    def preceding_terms(self, h: Tensor) -> Tensor:
        """C_a h and C_1 h, of the preceding sentence's annotations, as :meth:`context_terms`."""
        return torch.cat(self.gate.preceding_terms(h), dim=-1)

    def forward(
        self,
        previous: Tensor,
        query: Tensor,
        source: Tensor,
        step_input: Optional[Tensor],
        memory: Optional[AttentionMemory],
    ) -> Tuple[Tensor, Returned]:
        """See :meth:`RecurrentSourcePart.forward`."""
        assert step_input is not None  # from step_inputs
        word_term, preceding, weights = self.terms_of_step(query, step_input, memory)
        state_term = self.gate.from_state(previous) + word_term
        context, z = self.gate.mix(state_term, GateTerms(*source.chunk(2, dim=-1)), preceding)
        return context, {GATES: z} if weights is None else {GATES: z, ATTENTION: weights}

    def terms_of_step(
        self, query: Tensor, step_input: Tensor, memory: Optional[AttentionMemory]
    ) -> Tuple[Tensor, GateTerms, Optional[Tensor]]:
        """W y_{t-1}, (rows, context dim); C_a c_a and C_1 c_a; the weights of attention, (rows, preceding length)."""
        assert memory is not None  # from read
        weights = self.attention(query, memory)
        return step_input, GateTerms(*weighted_sum(weights, memory.values).chunk(2, dim=-1)), weights


class RecurrentRandomContext(RecurrentPrecedingContext):
    """The ablation ``random`` on RNNSearch: c_a is random. The attention is not read, but remains, so that a trained
    model's parameters fit."""

    attentions = ()

    def read(self, added: Mapping[str, Tensor]) -> None:
        """None: there is nothing to attend to."""

    def step_inputs(self, words: Tensor, added: Mapping[str, Tensor], first_step: int) -> Tensor:
        """W y_{t-1} and the :meth:`preceding_terms` of random contexts, see :func:`random_context`, side by side,
        (target length, rows, 3 · context dim)."""
        keys, steps = added["sentence_keys"], step_numbers(first_step, words)
        contexts = random_context(keys, 1, steps, self.gate.sentence_proj.in_features).to(words)
        return torch.cat([self.from_word(words), self.preceding_terms(contexts)], dim=-1)

    def terms_of_step(self, query: Tensor, step_input: Tensor, memory: object) -> Tuple[Tensor, GateTerms, None]:
        """See :meth:`RecurrentPrecedingContext.terms_of_step`; there are no weights."""
        word_term, in_gate, in_mixture = step_input.chunk(3, dim=-1)
        return word_term, GateTerms(in_gate, in_mixture), None


def step_numbers(first: int, x: Tensor) -> Tensor:
    """The numbers, (target length,), of the decoding steps in x, (target length, ...); ``first`` is the first one."""
    return torch.arange(first, first + x.size(0), device=x.device)
