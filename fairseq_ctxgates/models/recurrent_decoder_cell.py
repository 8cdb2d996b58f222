"""One step of the RNNSearch decoder: attention, the gates, and the recurrent unit."""

from typing import Any, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq_ctxgates.context_gates.recurrent_gates import RecurrentContextGate, RecurrentInterSentenceGate
from fairseq_ctxgates.modules.additive_attention import AdditiveAttention, AttentionMemory, weighted_sum
from fairseq_ctxgates.modules.gated_recurrent_unit import gru, initialize_gru


class Annotations(NamedTuple):
    """Encoded sentences: h_j, (sentences, length, context dim), and where padding is, (sentences, length)."""

    states: Tensor
    padding_mask: Tensor


class Memories(NamedTuple):
    """What every step reads and none changes: of the sentences, and of the preceding ones where there is attention over
    them."""

    sentence: AttentionMemory
    preceding: Optional[AttentionMemory] = None

    def select(self, sentences: Tensor) -> "Memories":
        """The memories of these sentences, by number."""
        preceding = None if self.preceding is None else self.preceding.select(sentences)
        return Memories(self.sentence.select(sentences), preceding)


class StepInput(NamedTuple):
    """What a step is given.

    Terms of y_{t-1}: ``gru``, W y in the recurrent unit, (rows, 3 · state dim); ``context_gate``, W_z y, (rows, state
    dim); ``inter_sentence_gate``, W y there, (rows, context dim). And ``preceding``, the terms of what stands for c_a
    in an ablation, (rows, 2 · context dim).
    """

    gru: Tensor
    context_gate: Optional[Tensor]
    inter_sentence_gate: Optional[Tensor]
    preceding: Optional[Tensor]


class Step(NamedTuple):
    """What a step gives: s_t, (rows, state dim); α over the sentence, (rows, length); the weight of the source by the
    context gate, (rows, state dim); z of the inter-sentence gate, (rows, context dim); α over the preceding sentence,
    (rows, preceding length)."""

    state: Tensor
    attention: Tensor
    context_gate: Optional[Tensor]
    inter_sentence_gate: Optional[Tensor]
    preceding_attention: Optional[Tensor]


class RecurrentDecoderCell(nn.Module):
    """The recurrence of RNNSearch: from s_{t-1}, the word y_{t-1} and the annotations h to s_t.

    Plain (Bahdanau et al. 2015), with attention as in :class:`AdditiveAttention`:

        α_t = attention(s_{t-1}, h),   c_t = Σ_j α_tj h_j,   s_t = GRU(s_{t-1}, [y_{t-1}; c_t])

    With feedback attention (Kuang and Xiong 2018, equations 7 and 8):

        s̃ = GRU(s_{t-1}, y_{t-1}),   α_t = attention(s̃, h),   s_t = GRU(s̃, c_t)

    With an inter-sentence gate (:class:`RecurrentInterSentenceGate`) a second attention reads the preceding sentence,
    and what the gate gives stands for c_t. With a context gate (:class:`RecurrentContextGate`) the source context C c_t
    and the target context W y_{t-1} + U s_{t-1} are scaled; with feedback attention the latter is U s̃, since s̃ has
    read y_{t-1}. Both gates read s_{t-1} and y_{t-1}. Where both are, the context gate's c_t is what the inter-sentence
    gate gives.

    All that is linear in y_{t-1} or in the annotations is computed before the first step (:meth:`inputs`,
    :meth:`read`): since α sums to one, C c_t = Σ_j α_tj C h_j.

    Args:
        cfg: the model's options
        word_dim: width of y_{t-1}, an embedding
        state_dim: width of s_t
        context_dim: width of h_j and c_t
    """

    def __init__(self, cfg: Any, word_dim: int, state_dim: int, context_dim: int) -> None:
        super().__init__()
        self.attention = AdditiveAttention(state_dim, context_dim, state_dim)
        self.word_proj = nn.Linear(word_dim, 3 * state_dim)  # W
        self.context_proj = nn.Linear(context_dim, 3 * state_dim)  # C
        self.state_proj = nn.Linear(state_dim, 3 * state_dim)  # U, in the GRU that reads c_t
        self.feedback_proj = nn.Linear(state_dim, 3 * state_dim) if cfg.feedback_attention else None  # U, in s̃'s GRU
        for linear in filter(None, (self.word_proj, self.context_proj, self.state_proj, self.feedback_proj)):
            initialize_gru(linear.weight, linear.bias)

        self.context_gate: Any = None
        if str(cfg.context_gate) != "none":
            self.context_gate = RecurrentContextGate(str(cfg.context_gate), word_dim, state_dim, context_dim)
        self.inter_sentence_gate: Any = None
        self.preceding_attention: Any = None
        if cfg.inter_sentence_gate:
            is_closed = str(cfg.inter_sentence_ablation) == "closed"
            self.inter_sentence_gate = RecurrentInterSentenceGate(word_dim, state_dim, context_dim, is_closed)
            self.preceding_attention = AdditiveAttention(state_dim, context_dim, state_dim)

    # --- before the first step

    def read(self, sentence: Annotations, preceding: Optional[Annotations] = None) -> Memories:
        """What the steps need of the annotations h_b of the sentences, and h_a of the preceding ones."""
        h, padding_mask = sentence
        gate = self.inter_sentence_gate
        values = self.source_terms(h) if gate is None else gate.sentence_terms(h)
        memory = AttentionMemory(self.attention.key_proj(h), values, padding_mask)
        if preceding is None:
            return Memories(memory)
        h, padding_mask = preceding
        return Memories(
            memory, AttentionMemory(self.preceding_attention.key_proj(h), gate.preceding_terms(h), padding_mask)
        )

    def source_terms(self, c: Tensor) -> Tensor:
        """C c, side by side with C_z c where there is a context gate, (..., 3 or 4 · state dim), of annotations or
        contexts c, (..., context dim)."""
        terms = self.context_proj(c)
        return terms if self.context_gate is None else torch.cat([terms, self.context_gate.from_context(c)], dim=-1)

    def inputs(self, words: Tensor, preceding_contexts: Optional[Tensor] = None) -> List[StepInput]:
        """What each step is given.

        Args:
            words: y_0, y_1, ..., (target length, rows, word dim)
            preceding_contexts: what stands for c_a in each step (an ablation), (target length, rows, context dim)
        """
        context_gate, gate = self.context_gate, self.inter_sentence_gate
        terms = (
            self.word_proj(words),
            None if context_gate is None else context_gate.from_word(words),
            None if gate is None else gate.from_word(words),
            None if preceding_contexts is None else gate.preceding_terms(preceding_contexts),
        )
        of_steps = ([None] * len(words) if term is None else term.unbind(0) for term in terms)
        return [StepInput(*step) for step in zip(*of_steps)]

    # --- a step

    def forward(self, state: Tensor, given: StepInput, memories: Memories) -> Step:
        """
        Args:
            state: s_{t-1}, (rows, state dim)
            given: from :meth:`inputs`
            memories: from :meth:`read`
        """
        previous = state
        if self.feedback_proj is None:
            targets = [self.state_proj(state), given.gru]
        else:
            state = gru(previous, given.gru, self.feedback_proj(previous))  # s̃
            targets = [self.state_proj(state)]

        attention = self.attention(state, memories.sentence)
        source = weighted_sum(attention, memories.sentence.values)
        inter_sentence_gate, context_gate, preceding_attention = None, None, None
        if self.inter_sentence_gate is not None:
            preceding, preceding_attention = self.attend_to_preceding(state, given, memories.preceding)
            source, inter_sentence_gate = self.mix(previous, source, preceding, given)
        if self.context_gate is not None:
            source, context_term = source.split([given.gru.size(-1), state.size(-1)], dim=-1)
            source, targets, context_gate = self.context_gate(
                previous, given.context_gate, context_term, source, targets
            )
        recurrent, *inputs = targets
        state = gru(state, sum(inputs, source), recurrent)
        return Step(state, attention, context_gate, inter_sentence_gate, preceding_attention)

    def attend_to_preceding(
        self, state: Tensor, given: StepInput, memory: Optional[AttentionMemory]
    ) -> Tuple[Optional[Tensor], Optional[Tensor]]:
        """The inter-sentence gate's terms of c_a, (rows, 2 · context dim), and α over the preceding sentence, (rows,
        preceding length); without a memory of it, the terms that are given (an ablation), and None."""
        if memory is None:
            return given.preceding, None
        attention = self.preceding_attention(state, memory)
        return weighted_sum(attention, memory.values), attention

    def mix(
        self, previous: Tensor, source: Tensor, preceding: Optional[Tensor], given: StepInput
    ) -> Tuple[Tensor, Tensor]:
        """Let the preceding sentence in through the inter-sentence gate.

        Args:
            previous: s_{t-1}, (rows, state dim)
            source: the gate's terms of c_b, (rows, 2 · context dim)
            preceding: its terms of c_a, of the same shape

        Returns:
            :meth:`source_terms` of what stands for c_t, and z
        """
        context, z = self.inter_sentence_gate.mix(previous, given.inter_sentence_gate, source, preceding)
        return self.source_terms(context), z
