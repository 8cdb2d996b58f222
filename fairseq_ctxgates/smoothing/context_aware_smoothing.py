"""A word's embedding learned from the words around it (Chen et al. 2017, *Context-Aware Smoothing for Neural Machine
Translation*)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Callable, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_ctxgates.parts import EmbeddingPart

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: Dict[str, Activation] = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu}


class ContextOfWords(nn.Module, ABC):
    """A network that makes a vector for each word from the n words before it and the m words after it.

    Args:
        before: n
        after: m, which is n, or 0 in the decoder
        activation: φ, in the slides σ
    """

    def __init__(self, before: int, after: int, activation: Activation) -> None:
        super().__init__()
        self.before, self.after = before, after
        self.activation = activation

    @abstractmethod
    def forward(self, words: Tensor) -> Tensor:
        """
        Args:
            words: v of the words asked for, of the n words before the first and of the m words after the last of them,
                (batch, embed dim, n + length + m)

        Returns:
            their vectors, (batch, embed dim, length)
        """


class FeedforwardContextOfWords(ContextOfWords):
    """FCWM: the vector of word j from the embeddings v of the words around it,

        φ(W_1 [v_{j-n}; ...; v_{j-1}; v_{j+1}; ...; v_{j+m}] + b_1)

    computed for all words at once: the columns of W_1 that read the words before j are the kernel of one convolution,
    those that read the words after j of another.

    Args:
        dim: width of the embeddings
        before, after, activation: see :class:`ContextOfWords`
    """

    def __init__(self, dim: int, before: int, after: int, activation: Activation) -> None:
        super().__init__(before, after, activation)
        self.history = nn.Conv1d(dim, dim, before)  # W_1, b_1
        self.future = nn.Conv1d(dim, dim, after, bias=False) if after else None
        for part in (self.history, self.future):
            if part is not None:
                _init(part, inputs=(before + after) * dim)

    def forward(self, words: Tensor) -> Tensor:
        """See :meth:`ContextOfWords.forward`."""
        x = self.history(words[..., : words.size(-1) - self.after - 1])
        if self.future is not None:
            x = x + self.future(words[..., self.before + 1 :])
        return self.activation(x)


class ConvolutionalContextOfWords(ContextOfWords):
    """CCWM: the vector of word j from the matrix M = [v_{j-n}, ..., v_{j-1}, v_{j+1}, ..., v_{j+m}],

        L_l = ψ(W_2 [M_l; ...; M_{l+k-1}] + b_2)   for l = 1, ..., n + m - k + 1
        P_l = max(L_{2l-1}, L_{2l}),               an odd last L alone
        φ(W_3 mean(P) + b_3)

    W_2 = [W_2^1, ..., W_2^k] is applied to each word of the sentence once, and the windows that have the same k words
    share their feature.

    Args:
        dim: width of the embeddings and of L
        before, after: see :class:`ContextOfWords`
        width: k
        activation: ψ and φ; the slides have σ for φ
    """

    def __init__(self, dim: int, before: int, after: int, width: int, activation: Activation) -> None:
        super().__init__(before, after, activation)
        self.convolution = nn.Conv1d(dim, dim, width)  # W_2, b_2
        self.output = nn.Conv1d(dim, dim, 1)  # W_3, b_3
        _init(self.convolution, inputs=width * dim)
        _init(self.output, inputs=dim)
        # The words that each L reads, numbered from j - n on. Word j itself is not in the window.
        window = [word for word in range(before + 1 + after) if word != before]
        self.groups = list(zip(*(window[first:] for first in range(width))))

    def forward(self, words: Tensor) -> Tensor:
        """See :meth:`ContextOfWords.forward`."""
        features = self.features(words)
        pooled = [torch.max(*pair) for pair in zip(features[::2], features[1::2])]
        pooled += features[2 * len(pooled) :]
        return self.activation(self.output(torch.stack(pooled).mean(dim=0)))

    def features(self, words: Tensor) -> List[Tensor]:
        """L_1, L_2, ... of each word asked for, each (batch, embed dim, length)."""
        kernels = self.convolution.weight.split(1, dim=-1)  # W_2^1, ..., W_2^k
        terms = [F.conv1d(words, kernels[0], self.convolution.bias), *(F.conv1d(words, part) for part in kernels[1:])]
        length = words.size(-1) - self.before - self.after
        # By the distances of the group's words from its first: they are neighbours, or have j between them.
        by_distances: Dict[Tuple[int, ...], Tensor] = {}
        features = []
        for group in self.groups:
            distances = tuple(word - group[0] for word in group)
            if distances not in by_distances:
                by_distances[distances] = self.activation(_sum_apart(terms, distances))
            features.append(by_distances[distances].narrow(-1, group[0], length))
        return features


def _sum_apart(terms: List[Tensor], distances: Tuple[int, ...]) -> Tensor:
    """Σ_i of the i-th term at the i-th distance from a position, for all positions that have them all."""
    length = terms[0].size(-1) - distances[-1]
    total = terms[0].narrow(-1, distances[0], length)
    for term, distance in zip(terms[1:], distances[1:]):
        total = total + term.narrow(-1, distance, length)
    return total


def _init(part: nn.Conv1d, inputs: int) -> None:
    """Xavier initialization of (a part of) a matrix with ``inputs`` columns; the bias is zero."""
    bound = math.sqrt(6 / (inputs + part.out_channels))
    nn.init.uniform_(part.weight, -bound, bound)
    if part.bias is not None:
        nn.init.zeros_(part.bias)


class ContextAwareSmoothing(EmbeddingPart):
    """Smooths embeddings (Chen et al. 2017): a network makes a vector from the words around a word, and the vector
    replaces the word's embedding or is added to it.

    The window holds the words of the sequence as the model has them. They include end of sentence, with which the
    decoder begins, and <unk>, which has its own embedding there, not a vector from its own context. The window is zero
    beyond both ends of the sentence. Padding is not part of a sentence, so a sentence has the same vectors in any batch
    and with padding on either side. The embedding of padding does not change.

    Args:
        network: makes the vectors
        padding: index of the padding symbol
        unknown: smooth this word only; None: all words
        add: add the vector to the embedding, else replace it
        embed_scale: factor by which the model later multiplies these embeddings. The network reads and makes scaled
            embeddings, so that its vectors are of the same size
    """

    def __init__(
        self,
        network: ContextOfWords,
        padding: int,
        unknown: Optional[int],
        add: bool,
        embed_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.network = network
        self.before, self.after = network.before, network.after
        self.padding, self.unknown = padding, unknown
        self.add = add
        self.embed_scale = embed_scale

    def forward(self, embeddings: Tensor, tokens: Tensor, length: int) -> Tensor:
        """See :meth:`EmbeddingPart.forward`."""
        words = self.embed_scale * embeddings.masked_fill(tokens.eq(self.padding).unsqueeze(-1), 0)
        words = F.pad(words, (0, 0, self.before, self.after))[:, -(self.before + length + self.after) :]
        tokens, embeddings = tokens[:, -length:], embeddings[:, -length:]
        if self.unknown is None:
            smoothed = self.combine(embeddings, self.vectors(words))
            return torch.where(tokens.ne(self.padding).unsqueeze(-1), smoothed, embeddings)

        # A batch without unknown words runs the network on an empty input: its parameters then have gradients of zero,
        # as distributed training requires.
        row, column = tokens.eq(self.unknown).nonzero(as_tuple=True)
        window = torch.arange(self.before + 1 + self.after, device=tokens.device)
        vectors = self.vectors(words[row.unsqueeze(1), column.unsqueeze(1) + window]).squeeze(1)
        return embeddings.index_put((row, column), self.combine(embeddings[row, column], vectors))

    def vectors(self, words: Tensor) -> Tensor:
        """The network's vectors, (batch, length, embed dim), from words with those before and after them,
        (batch, before + length + after, embed dim)."""
        return self.network(words.transpose(1, 2)).transpose(1, 2) / self.embed_scale

    def combine(self, embeddings: Tensor, vectors: Tensor) -> Tensor:
        """The smoothed embeddings, of the shape and type of the embeddings."""
        return (embeddings + vectors if self.add else vectors).type_as(embeddings)
