"""The context gates of RNNSearch (Tu et al. 2017, *Context Gates for Neural Machine Translation*)."""

from __future__ import annotations

from typing import List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from fairseq_ctxgates.context_gates.context_gate import GATES
from fairseq_ctxgates.parts import RecurrentConnection, RecurrentWidths, Returned


class RecurrentContextGate(RecurrentConnection):
    """The gate z_t = σ(W_z y_{t-1} + U_z s_{t-1} + C_z c_t + b), and what it scales.

    With f the recurrent unit, C c_t the source context and W y_{t-1} + U s_{t-1} the target context,

        source:  s_t = f(W y + U s + z ⊙ C c)
        target:  s_t = f(z ⊙ (W y + U s) + C c)
        both:    s_t = f((1 - z) ⊙ (W y + U s) + z ⊙ C c)

    f is a GRU, which has such a sum in its reset gate, its update gate and its candidate state. The same z scales the
    terms of all three, as in the authors' published program. It also scales the biases that W y, U s and C c have here.

    Args:
        kind: ``source``, ``target`` or ``both``
        widths: z_t is as wide as s_{t-1}
    """

    gates = (GATES,)

    def __init__(self, kind: str, widths: RecurrentWidths) -> None:
        super().__init__()
        self.kind = kind
        self.from_word = nn.Linear(widths.word, widths.state)  # W_z, b
        self.from_state = nn.Linear(widths.state, widths.state, bias=False)  # U_z
        self.from_context = nn.Linear(widths.context, widths.state, bias=False)  # C_z
        for linear in (self.from_word, self.from_state, self.from_context):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.from_word.bias)

    def step_inputs(self, words: Tensor, added: Mapping[str, Tensor], first_step: int) -> Tensor:
        """W_z y_{t-1} + b, (target length, rows, state dim)."""
        terms: Tensor = self.from_word(words)
        return terms

    def context_terms(self, context_proj: nn.Module, context: Tensor) -> Tensor:
        """C c and C_z c side by side, (..., 4 · state dim)."""
        return torch.cat([context_proj(context), self.from_context(context)], dim=-1)

    def forward(
        self, previous: Tensor, step_input: Optional[Tensor], source: Tensor, target_terms: Sequence[Tensor]
    ) -> Tuple[Tensor, List[Tensor], Returned]:
        """See :meth:`RecurrentConnection.forward`. Returns the weight of the source beside the terms, (rows, state
        dim), between 0 and 1: z, or 1 - z where the gate scales the target only."""
        width = previous.size(-1)
        source, context_term = source.split([source.size(-1) - width, width], dim=-1)
        z = torch.sigmoid(step_input + self.from_state(previous) + context_term)
        if self.kind == "source":
            return _scaled(source, z), list(target_terms), {GATES: z}
        if self.kind == "target":
            return source, [_scaled(terms, z) for terms in target_terms], {GATES: 1 - z}
        return _scaled(source, z), [_scaled(terms, 1 - z) for terms in target_terms], {GATES: z}


def _scaled(terms: Tensor, gate: Tensor) -> Tensor:
    """The three parts of a GRU's input, (rows, 3 · state dim), each times the gate, (rows, state dim)."""
    return (terms.unflatten(-1, (3, gate.size(-1))) * gate.unsqueeze(-2)).flatten(-2)
