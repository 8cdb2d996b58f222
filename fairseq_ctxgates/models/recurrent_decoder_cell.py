"""One step of the RNNSearch decoder: attention, the mechanisms' parts, and the recurrent unit."""

from __future__ import annotations

from functools import partial
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence

from torch import Tensor, nn

from fairseq_ctxgates.mechanism import Mechanism
from fairseq_ctxgates.models.mechanism_parts import single_part
from fairseq_ctxgates.modules.additive_attention import AdditiveAttention, AttentionMemory, weighted_sum
from fairseq_ctxgates.modules.gated_recurrent_unit import gru, initialize_gru
from fairseq_ctxgates.parts import (
    Part,
    Parts,
    PlainRecurrentConnection,
    RecurrentConnection,
    RecurrentWidths,
    Returned,
)


class StepMemory(NamedTuple):
    """What every step reads and none changes: the memory of attention over the sentence, and that of each source part
    that attends to something, by name."""

    sentence: AttentionMemory
    parts: Mapping[str, AttentionMemory]

    def select(self, sentences: Tensor) -> StepMemory:
        """The memory of the sentences with these numbers."""
        parts = {name: memory.select(sentences) for name, memory in self.parts.items()}
        return StepMemory(self.sentence.select(sentences), parts)


class StepInput(NamedTuple):
    """The input of a step: W y_{t-1}, (rows, 3 · state dim), and the inputs of the source parts, by name, and of the
    connection."""

    word: Tensor
    parts: Mapping[str, Optional[Tensor]]
    connection: Optional[Tensor]


class Step(NamedTuple):
    """The result of a step: s_t, (rows, state dim); α over the sentence, (rows, length); and what parts returned,
    (rows, any width)."""

    state: Tensor
    attention: Tensor
    returned: Returned


class RecurrentDecoderCell(nn.Module):
    """The recurrence of RNNSearch: from s_{t-1}, the word y_{t-1} and the annotations h to s_t.

    Plain (Bahdanau et al. 2015), with attention as in :class:`AdditiveAttention`:

        α_t = attention(s_{t-1}, h),   c_t = Σ_j α_tj h_j,   s_t = GRU(s_{t-1}, [y_{t-1}; c_t])

    With feedback attention (Kuang and Xiong 2018, equations 7 and 8):

        s̃ = GRU(s_{t-1}, y_{t-1}),   α_t = attention(s̃, h),   s_t = GRU(s̃, c_t)

    The mechanisms' source parts change c_t in turn. Their connection scales the source context C c_t and the target
    context W y_{t-1} + U s_{t-1}; with feedback attention the target context is U s̃, since s̃ has read y_{t-1}.

    All that is linear in y_{t-1} or in the annotations is computed before the first step (:meth:`inputs`,
    :meth:`read`): since α sums to one, C c_t = Σ_j α_tj C h_j.

    Args:
        mechanisms: those that are on
        widths: of y_{t-1}, s_t, and of h_j and c_t
        feedback_attention: see above
    """

    def __init__(self, mechanisms: Sequence[Mechanism], widths: RecurrentWidths, feedback_attention: bool) -> None:
        super().__init__()
        state_dim = widths.state
        self.attention = AdditiveAttention(state_dim, widths.context, state_dim)
        self.word_proj = nn.Linear(widths.word, 3 * state_dim)  # W
        self.context_proj = nn.Linear(widths.context, 3 * state_dim)  # C
        self.state_proj = nn.Linear(state_dim, 3 * state_dim)  # U in s_t
        self.feedback_proj = nn.Linear(state_dim, 3 * state_dim) if feedback_attention else None  # U in s̃
        for linear in filter(None, (self.word_proj, self.context_proj, self.state_proj, self.feedback_proj)):
            initialize_gru(linear.weight, linear.bias)

        self.source_parts = Parts({mechanism.name: mechanism.recurrent_source_part(widths) for mechanism in mechanisms})
        connections = [mechanism.recurrent_connection(widths) for mechanism in mechanisms]
        self.connection: RecurrentConnection = single_part(connections, default=PlainRecurrentConnection())
        every_part: Sequence[Part] = (*self.source_parts.in_order(), self.connection)
        self.returnable = tuple(name for part in every_part for name in part.returnable)
        self.attentions = {name for part in every_part for name in part.attentions}

    # --- before the first step

    def read(self, h: Tensor, padding_mask: Tensor, added: Mapping[str, Tensor]) -> StepMemory:
        """What the steps read of the annotations h, (sentences, length, context dim), whose padding mask is (sentences,
        length), and of the tensors that mechanisms added to the encoder's output."""
        memories = {name: part.read(added) for name, part in self.source_parts.named()}
        parts = {name: memory for name, memory in memories.items() if memory is not None}
        terms = self.context_readers()[0](h)
        return StepMemory(AttentionMemory(self.attention.key_proj(h), terms, padding_mask), parts)

    def context_readers(self) -> List[Callable[[Tensor], Tensor]]:
        """For each part that reads the source context, the function that computes the terms which the part needs, (...,
        any width) from (..., context dim): the source parts in turn, and after them the connection."""
        of_source_parts = [part.context_terms for part in self.source_parts.in_order()]
        return [*of_source_parts, partial(self.connection.context_terms, self.context_proj)]

    def inputs(self, words: Tensor, added: Mapping[str, Tensor], first_step: int) -> List[StepInput]:
        """The input of each step.

        Args:
            words: y_0, y_1, ..., (target length, rows, word dim)
            added: the tensors that mechanisms added to the encoder's output, by name
            first_step: the number of the first step, from 0
        """
        steps = len(words)
        word = self.word_proj(words).unbind(0)
        parts = {
            name: _each_step(part.step_inputs(words, added, first_step), steps)
            for name, part in self.source_parts.named()
        }
        connection = _each_step(self.connection.step_inputs(words, added, first_step), steps)
        return [
            StepInput(word[step], {name: terms[step] for name, terms in parts.items()}, connection[step])
            for step in range(steps)
        ]

    # --- a step

    def forward(self, state: Tensor, step_input: StepInput, memory: StepMemory) -> Step:
        """
        Args:
            state: s_{t-1}, (rows, state dim)
            step_input: from :meth:`inputs`
            memory: from :meth:`read`
        """
        previous = state
        if self.feedback_proj is None:
            target_terms = [self.state_proj(state), step_input.word]
        else:
            state = gru(previous, step_input.word, self.feedback_proj(previous))  # s̃
            target_terms = [self.state_proj(state)]

        attention = self.attention(state, memory.sentence)
        # What the first reader needs of the source context: Σ_j α_tj terms(h_j) = terms(c_t).
        terms = weighted_sum(attention, memory.sentence.values)
        returned: Returned = {}
        for (name, part), next_reader in zip(self.source_parts.named(), self.context_readers()[1:]):
            context, found = part(previous, state, terms, step_input.parts[name], memory.parts.get(name))
            terms = next_reader(context)
            returned.update(found)
        source, target_terms, found = self.connection(previous, step_input.connection, terms, target_terms)
        returned.update(found)
        recurrent, *others = target_terms
        return Step(gru(state, sum(others, source), recurrent), attention, returned)


def _each_step(terms: Optional[Tensor], steps: int) -> Sequence[Optional[Tensor]]:
    """The terms of each step, (rows, any width), from those of all, (steps, rows, any width), or None for each."""
    return [None] * steps if terms is None else terms.unbind(0)
