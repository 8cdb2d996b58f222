"""Sentences of which each is read together with those before it, as one."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple, Union

import numpy as np
import torch
from fairseq.data import FairseqDataset
from torch import Tensor
from torch.utils.data import Dataset

Lengths = Union[int, np.ndarray]


class JoinedSentences(Dataset):
    """Sentences with their preceding ones before them.

    Args:
        own: the sentences
        others: what the rows of preceding sentences point to
        rows_before: the rows of the sentences to join before one, the nearest last
        separator: what stands after each of them, as text and as token
        max_positions: the greatest length
    """

    def __init__(
        self,
        own: FairseqDataset,
        others: Any,
        rows_before: Callable[[int], List[int]],
        separator: Tuple[str, int],
        max_positions: int,
    ) -> None:
        self.own = own
        self.others = others
        self.rows_before = rows_before
        self.separator_text, self.separator = separator[0], torch.tensor(separator[1:])
        self.max_positions = max_positions

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, index: int) -> Tensor:
        return prepend(self.before(index), self.own[index], self.max_positions)

    def before(self, index: int) -> Tensor:
        """All that is to be joined before a sentence."""
        parts = [part for row in self.rows_before(index) for part in (self.others[row][:-1], self.separator)]
        return torch.cat([self.separator[:0], *parts])

    def get_original_text(self, index: int) -> str:
        """The words, which ``--replace-unk`` reads of ``--dataset-impl raw``. Its alignments do not count the end of
        sentence, so as a separator it is left out."""
        own: str = self.own.get_original_text(index)
        joined: List[str] = []
        for row in self.preceding(index):
            joined += [*self.others.get_original_text(row).split(), self.separator_text]
        return " ".join([*filter(None, joined[-room(self.max_positions, len(self.own[index])) :]), own])

    def preceding(self, index: int) -> List[int]:
        """The sentences to join before one, the nearest last; none without room for one."""
        return self.rows_before(index) if room(self.max_positions, len(self.own[index])) else []

    def sizes(self, lengths: np.ndarray, preceding_lengths: np.ndarray) -> np.ndarray:
        """The lengths of all, from those of the sentences and of their preceding ones, (sentences, N), end of sentence
        included in each, in whose place there is a separator."""
        added: np.ndarray = np.minimum(preceding_lengths.sum(axis=1), room(self.max_positions, lengths))
        return lengths + added


def room(max_positions: int, lengths: Lengths) -> Lengths:
    """How many words and separators there is room for before sentences of these lengths: none, or a word and a
    separator at least."""
    left = max_positions - lengths
    return np.where(left < 2, 0, left)


def prepend(before: Tensor, own: Tensor, max_positions: int) -> Tensor:
    """What there is room for of the preceding sentences, its end, and a sentence."""
    length = int(room(max_positions, len(own)))
    return torch.cat([before[-length:] if length else before[:0], own])
