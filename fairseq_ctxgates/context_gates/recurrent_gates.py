"""The gates of RNNSearch: Tu et al. 2017, *Context Gates for Neural Machine Translation*, and the inter-sentence gate.

In each step of a recurrent decoder a gate reads the state, the word before, and the source context. What is linear in
the word or the context is computed for all steps or all source positions at once, and arrives as their *terms*.
"""

from dataclasses import dataclass, field
from typing import List, Sequence, Tuple

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from fairseq_ctxgates.inter_sentence.gate import InterSentenceGate

RecurrentContextGateChoice = ChoiceEnum(["none", "source", "target", "both"])


@dataclass
class RecurrentContextGateConfig(FairseqDataclass):
    """Options of the context gate."""

    context_gate: RecurrentContextGateChoice = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "what a gate z scales before it goes into the decoder's state (Tu et al. 2017): nothing (none), "
            "the source context, the target context, or both, the source with z and the target with 1 - z"
        },
    )


class RecurrentContextGate(nn.Module):
    """The gate z_t = σ(W_z y_{t-1} + U_z s_{t-1} + C_z c_t + b), and what it scales.

    With f the recurrent unit, C c_t the source context and W y_{t-1} + U s_{t-1} the target context,

        source:  s_t = f(W y + U s + z ⊙ C c)
        target:  s_t = f(z ⊙ (W y + U s) + C c)
        both:    s_t = f((1 - z) ⊙ (W y + U s) + z ⊙ C c)

    f is a GRU, which has such a sum in its reset gate, its update gate and its candidate state: the same z scales the
    parts of all three, as in the authors' published program.

    Args:
        kind: ``source``, ``target`` or ``both``
        word_dim: width of y_{t-1}, an embedding
        state_dim: width of s_{t-1} and z_t
        context_dim: width of c_t
    """

    def __init__(self, kind: str, word_dim: int, state_dim: int, context_dim: int) -> None:
        super().__init__()
        self.kind = kind
        self.from_word = nn.Linear(word_dim, state_dim)  # W_z, b
        self.from_state = nn.Linear(state_dim, state_dim, bias=False)  # U_z
        self.from_context = nn.Linear(context_dim, state_dim, bias=False)  # C_z
        for linear in (self.from_word, self.from_state, self.from_context):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.from_word.bias)

    def forward(
        self, state: Tensor, word_term: Tensor, context_term: Tensor, source: Tensor, targets: Sequence[Tensor]
    ) -> Tuple[Tensor, List[Tensor], Tensor]:
        """
        Args:
            state: s_{t-1}, (rows, state dim)
            word_term: W_z y_{t-1} + b, of the same shape
            context_term: C_z c_t, of the same shape
            source: C c_t, the parts of reset gate, update gate and candidate state side by side, (rows, 3 · state dim)
            targets: the terms of the target context, such as U s_{t-1}, of the same shape

        Returns:
            source and targets, scaled, and the weight of the source, (rows, state dim), between 0 and 1: z, or 1 - z
            where the gate scales the target only
        """
        z = torch.sigmoid(word_term + self.from_state(state) + context_term)
        if self.kind == "source":
            return _scaled(source, z), list(targets), z
        if self.kind == "target":
            return source, [_scaled(target, z) for target in targets], 1 - z
        return _scaled(source, z), [_scaled(target, 1 - z) for target in targets], z


def _scaled(parts: Tensor, gate: Tensor) -> Tensor:
    """The three parts of a GRU's input, (rows, 3 · state dim), each times the gate, (rows, state dim)."""
    return (parts.unflatten(-1, (3, gate.size(-1))) * gate.unsqueeze(-2)).flatten(-2)


class RecurrentInterSentenceGate(InterSentenceGate):
    """The inter-sentence gate on RNNSearch (Kuang and Xiong 2018, equations 9 and 10),

        z_t = σ(U s_{t-1} + W y_{t-1} + C_b c_b + C_a c_a + b),   C_1 c_a ⊙ z_t + C_2 c_b ⊙ (1 - z_t)

    It is :class:`InterSentenceGate` with a state of two parts, [s_{t-1}; y_{t-1}], each with a matrix of its own.

    Args:
        word_dim: width of y_{t-1}, an embedding
        state_dim: width of s_{t-1}
        context_dim: width of c_a, c_b and z_t
        closed: z = 0, whatever is learned (an ablation)
    """

    def __init__(self, word_dim: int, state_dim: int, context_dim: int, closed: bool = False) -> None:
        super().__init__(state_dim, context_dim, closed)
        self.from_word = nn.Linear(word_dim, context_dim, bias=False)  # W
        nn.init.xavier_uniform_(self.from_word.weight)

    def sentence_terms(self, h: Tensor) -> Tensor:
        """C_b h and C_2 h side by side, (..., 2 · context dim), of annotations h, (..., context dim)."""
        return torch.cat([self.from_sentence(h), self.sentence_proj(h)], dim=-1)

    def preceding_terms(self, h: Tensor) -> Tensor:
        """C_a h and C_1 h, of the preceding sentence's annotations, as :meth:`sentence_terms`."""
        return torch.cat([self.from_preceding(h), self.preceding_proj(h)], dim=-1)

    def mix(self, state: Tensor, word_term: Tensor, sentence: Tensor, preceding: Tensor) -> Tuple[Tensor, Tensor]:
        """
        Args:
            state: s_{t-1}, (rows, state dim)
            word_term: W y_{t-1}, (rows, context dim)
            sentence: the terms of c_b, (rows, 2 · context dim)
            preceding: the terms of c_a, of the same shape

        Returns:
            what stands for the sentence's context, and z_t, each (rows, context dim)
        """
        (gate_b, context_b), (gate_a, context_a) = sentence.chunk(2, dim=-1), preceding.chunk(2, dim=-1)
        if self.closed:
            z = torch.zeros_like(context_b)
        else:
            z = torch.sigmoid(self.from_state(state) + word_term + gate_b + gate_a)
        return torch.lerp(context_b, context_a, z), z
