"""Additive attention (Bahdanau et al. 2015, *Neural Machine Translation by Jointly Learning to Align and
Translate*)."""

from typing import NamedTuple

import torch
from fairseq import utils
from torch import Tensor, nn


class AttentionMemory(NamedTuple):
    """What attention reads from encoded sentences; it does not change from step to step.
    There may be more rows than sentences: with k beams, row i belongs to sentence i // k.

    Attributes:
        keys: U h_j, (sentences, length, attention dim)
        values: what is summed with the weights α_j, a linear map of h_j, (sentences, length, value dim)
        padding_mask: (sentences, length), true at padding
    """

    keys: Tensor
    values: Tensor
    padding_mask: Tensor

    def select(self, sentences: Tensor) -> "AttentionMemory":
        """The memory of the sentences with these numbers."""
        return AttentionMemory(*(part.index_select(0, sentences) for part in self))


class AdditiveAttention(nn.Module):
    """Attention with a feed-forward network of one hidden layer: of the decoder's state s over the annotations h_j,

        e_j = v · tanh(W s + b + U h_j),   α = softmax(e)

    Args:
        state_dim: width of s
        memory_dim: width of h_j
        attention_dim: width of the hidden layer
    """

    def __init__(self, state_dim: int, memory_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.query_proj = nn.Linear(state_dim, attention_dim)  # W, b
        self.key_proj = nn.Linear(memory_dim, attention_dim, bias=False)  # U
        self.score = nn.Parameter(torch.empty(attention_dim))  # v
        nn.init.xavier_uniform_(self.query_proj.weight)
        nn.init.zeros_(self.query_proj.bias)
        nn.init.xavier_uniform_(self.key_proj.weight)
        nn.init.uniform_(self.score, -(attention_dim**-0.5), attention_dim**-0.5)

    def forward(self, state: Tensor, memory: AttentionMemory) -> Tensor:
        """
        Args:
            state: s, (rows, state dim)
            memory: of the rows' sentences, with keys from ``key_proj``

        Returns:
            α, (rows, length)
        """
        sentences, length, width = memory.keys.shape
        query = self.query_proj(state).view(sentences, -1, 1, width)
        keys = memory.keys.unsqueeze(1)
        if query.element_size() < 4:
            scores = torch.tanh(query + keys) @ self.score
        else:
            # tanh x = 2 σ(2x) - 1, and softmax ignores a constant that is added to all scores. On a CPU, σ takes a
            # tenth of the time that tanh takes; half precision would lose digits to the constant.
            scores = torch.sigmoid(torch.add(2 * query, keys, alpha=2)) @ (2 * self.score)
        scores = scores.masked_fill(memory.padding_mask.unsqueeze(1), float("-inf"))
        return utils.softmax(scores, dim=-1).to(scores).view(-1, length)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_j α_j v_j for every row.

    Args:
        weights: α, (rows, ..., length); with k rows for each sentence, row i belongs to sentence i // k
        values: v, (sentences, length, value dim)

    Returns:
        (rows, ..., value dim)
    """
    sentences, length, width = values.shape
    return torch.bmm(weights.reshape(sentences, -1, length), values).view(*weights.shape[:-1], width)
