"""The gated recurrent unit, as torch computes it, for the decoder's steps and for the encoder."""

from typing import List

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fairseq_ctxgates.modules.interpolation import interpolate
from fairseq_ctxgates.modules.linear import linear


def gru(state: Tensor, inputs: Tensor, recurrent: Tensor) -> Tensor:
    """One step: with the parts of x = inputs and h = recurrent,

        r = σ(x_r + h_r),   u = σ(x_u + h_u),   n = tanh(x_n + r ⊙ h_n),   s' = (1 - u) ⊙ n + u ⊙ s

    This is torch's GRU, and that of Tu et al.'s published program. Bahdanau et al. (2015) have U (r ⊙ s) in place of
    r ⊙ (U s), which would take a second product in each step, after the first. Their z is the weight of the new state,
    while u is the weight of the old one.

    Args:
        state: s, (rows, state dim)
        inputs: x_r, x_u and x_n side by side, (rows, 3 · state dim)
        recurrent: h_r, h_u and h_n, linear in s, of the same shape

    Returns:
        s', (rows, state dim)
    """
    width = state.size(-1)
    x, x_n = inputs.split([2 * width, width], dim=-1)
    h, h_n = recurrent.split([2 * width, width], dim=-1)
    r, u = torch.sigmoid(x + h).chunk(2, dim=-1)
    n = torch.tanh(torch.addcmul(x_n, r, h_n))
    return interpolate(n, state, u)


def initialize_gru(weight: Tensor, bias: Tensor) -> None:
    """Initialise the input or the recurrent matrix of a GRU: each of the three parts of the weight, (3 · state dim,
    input dim), is orthogonal if it is square, else drawn from Glorot's uniform distribution; the bias is zero."""
    for part in weight.data.chunk(3):
        if part.size(0) == part.size(1):
            nn.init.orthogonal_(part)
        else:
            nn.init.xavier_uniform_(part)
    nn.init.zeros_(bias)


class BidirectionalGRU(nn.GRU):
    """torch's bidirectional GRU of one layer over packed sentences; on a CPU it is computed by a loop of its own.

    torch's code for the CPU slices every step's input from one tensor, so that the gradient of each step has the size
    of all steps. It also leaves the products to MKL (see :func:`linear`).

    Args:
        input_dim: width of the input
        state_dim: width of the state in each direction
    """

    def __init__(self, input_dim: int, state_dim: int) -> None:
        super().__init__(input_dim, state_dim, bidirectional=True)
        for direction in ("", "_reverse"):
            for part in ("ih", "hh"):
                initialize_gru(*self._parameters_of(part, direction))

    def _parameters_of(self, part: str, direction: str) -> List[Tensor]:
        return [getattr(self, f"{kind}_{part}_l0{direction}") for kind in ("weight", "bias")]

    def states(self, words: Tensor, batch_sizes: Tensor) -> Tensor:
        """
        Args:
            words: the data of a ``PackedSequence``, (words, input dim)
            batch_sizes: the number of first words, of second words, and so on, (longest length,), on the CPU

        Returns:
            the states of both directions side by side, (words, 2 · state dim)
        """
        if words.device.type != "cpu":
            packed, _ = self(PackedSequence(words, batch_sizes))
            return packed.data
        return torch.cat([self._run(words, batch_sizes.tolist(), direction) for direction in ("", "_reverse")], dim=1)

    def _run(self, words: Tensor, batch_sizes: List[int], direction: str) -> Tensor:
        inputs = linear(words, *self._parameters_of("ih", direction)).split(batch_sizes)
        weight, bias = self._parameters_of("hh", direction)
        state = words.new_zeros(0, self.hidden_size)
        states = []
        for x in reversed(inputs) if direction else inputs:
            # Forwards, sentences end, the shortest first; backwards, they begin, the longest first.
            state = torch.cat([state, state.new_zeros(max(len(x) - len(state), 0), self.hidden_size)])[: len(x)]
            state = gru(state, x, linear(state, weight, bias))
            states.append(state)
        return torch.cat(states[::-1] if direction else states)
