"""What is drawn at random in training: how many preceding sentences are read, and which words the sources, but not
their preceding sentences, lose (CoWord dropout; Fernandes et al. 2021)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


class Draws:
    """Draws for each sentence of a dataset: different in each epoch, and the same in resumed training.

    Args:
        seed: the seed of the training
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 1

    def context_size(self, row: int, largest: int) -> int:
        """How many preceding sentences a sentence reads, from none to ``largest``."""
        size: int = self._numbers(row).randint(1 + largest)
        return size

    def is_dropped(self, row: int, words: int, probability: float) -> np.ndarray:
        """Which of a sentence's words drop out, (words,), bool, whatever :meth:`context_size` is."""
        # Without the first number, from which the other is drawn.
        return self._numbers(row).random_sample(1 + words)[1:] < probability

    def _numbers(self, row: int) -> np.random.RandomState:
        return np.random.RandomState([self.seed % 2**32, self.epoch, row])


class WithoutWords(Dataset):
    """Sentences in which random words are replaced by the unknown word.

    Args:
        sentences: tokens, (length,) each
        probability: the probability that a token is replaced; end of sentence is kept
        draws: decides which words, anew in each epoch
        unk, eos: the tokens of the unknown word and of end of sentence
    """

    def __init__(self, sentences: Any, probability: float, draws: Draws, unk: int, eos: int) -> None:
        self.sentences = sentences
        self.probability = probability
        self.draws = draws
        self.unk, self.eos = unk, eos

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> Tensor:
        sentence: Tensor = self.sentences[index]
        is_dropped = self.draws.is_dropped(index, len(sentence), self.probability)
        return sentence.masked_fill(torch.from_numpy(is_dropped) & sentence.ne(self.eos), self.unk)
