"""Sentences that are read together with the sentences before them, as one."""

from __future__ import annotations

from typing import Any, Callable, List, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

Lengths = Union[int, np.ndarray]


class JoinedSentences(Dataset):
    """Sentences to which their preceding sentences are prepended.

    Args:
        own: the sentences, (length,) each, end of sentence included: binarized or raw data, or a list for lines
        others: the sentences that the rows of preceding sentences point to
        rows_before: for the row of a sentence, the rows of the sentences to prepend, the nearest last
        separator: the token that follows each prepended sentence
        max_positions: the maximum length
        separator_text: the separator in the original text, see :meth:`get_original_text`
    """

    def __init__(
        self,
        own: Any,
        others: Any,
        rows_before: Callable[[int], List[int]],
        separator: int,
        max_positions: int,
        separator_text: str = "",
    ) -> None:
        self.own = own
        self.others = others
        self.rows_before = rows_before
        self.separator = torch.tensor([separator])
        self.max_positions = max_positions
        self.separator_text = separator_text

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, index: int) -> Tensor:
        return prepend(self.before(index), self.own[index], self.max_positions)

    def before(self, index: int) -> Tensor:
        """All that is to be prepended to a sentence."""
        parts = [part for row in self.rows_before(index) for part in (self.others[row][:-1], self.separator)]
        return torch.cat([self.separator[:0], *parts])

    def get_original_text(self, index: int) -> str:
        """The words, which ``--replace-unk`` reads with ``--dataset-impl raw``. Its alignments do not count end of
        sentence, which is therefore left out if it is the separator."""
        own: str = self.own.get_original_text(index)
        joined: List[str] = []
        for row in self.preceding(index):
            joined += [*self.others.get_original_text(row).split(), self.separator_text]
        return " ".join([*filter(None, joined[-room(self.max_positions, len(self.own[index])) :]), own])

    def preceding(self, index: int) -> List[int]:
        """The rows of the sentences to prepend to a sentence, the nearest last; none if there is no room."""
        return self.rows_before(index) if room(self.max_positions, len(self.own[index])) else []

    def joined_lengths(self, lengths: np.ndarray, preceding_lengths: np.ndarray) -> np.ndarray:
        """The lengths of the joined sentences, from those of the sentences, (sentences,), and of their preceding
        sentences, (sentences, N). All lengths include end of sentence, which the separator replaces."""
        added: np.ndarray = np.minimum(preceding_lengths.sum(axis=1), room(self.max_positions, lengths))
        return lengths + added


def room(max_positions: int, lengths: Lengths) -> Lengths:
    """How many words and separators there is room for before sentences of these lengths: none, or at least a word and a
    separator."""
    left = max_positions - lengths
    return np.where(left < 2, 0, left)


def prepend(before: Tensor, own: Tensor, max_positions: int) -> Tensor:
    """A sentence after as much of the preceding sentences as there is room for, cut at their beginning."""
    length = int(room(max_positions, len(own)))
    return torch.cat([before[-length:] if length else before[:0], own])
