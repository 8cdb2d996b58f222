"""The deep output from which RNNSearch predicts words (Bahdanau et al. 2015, appendix A.2.2)."""

import torch
from torch import Tensor, nn


class DeepOutput(nn.Module):
    """One maxout layer over the state, the previous word and the context,

        t̃_t = U_o s_t + V_o y_{t-1} + C_o c_t + b,   t_t = max of every two components of t̃_t

    The state is s_t, as in the paper's section 3.1; its appendix writes s_{t-1}. The two components are k and l + k,
    where the paper has 2k - 1 and 2k; this only changes the order of the matrices' rows.

    Args:
        state_dim: width of s
        word_dim: width of y, an embedding
        context_dim: width of c
        output_dim: l, the width of t
    """

    def __init__(self, state_dim: int, word_dim: int, context_dim: int, output_dim: int) -> None:
        super().__init__()
        self.state_proj = nn.Linear(state_dim, 2 * output_dim)  # U_o, b
        self.word_proj = nn.Linear(word_dim, 2 * output_dim, bias=False)  # V_o
        self.context_proj = nn.Linear(context_dim, 2 * output_dim, bias=False)  # C_o
        for linear in (self.state_proj, self.word_proj, self.context_proj):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.state_proj.bias)

    def forward(self, states: Tensor, words: Tensor, context_terms: Tensor) -> Tensor:
        """
        Args:
            states: s_t, (..., state dim)
            words: y_{t-1}, (..., word dim)
            context_terms: C_o c_t, (..., 2 · output dim)

        Returns:
            t_t, (..., output dim)
        """
        first, second = (self.state_proj(states) + self.word_proj(words) + context_terms).chunk(2, dim=-1)
        return torch.maximum(first, second)
