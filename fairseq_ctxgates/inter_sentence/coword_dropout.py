"""Words that the sources, but not their preceding sentences, lose at random in training (CoWord dropout; Fernandes et
al. 2021)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


class Draws:
    """Random numbers for each sentence of a dataset: different in each epoch, and the same in resumed training.

    Args:
        seed: the seed of the training
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 1

    def of(self, row: int) -> np.random.RandomState:
        """The random numbers of a sentence."""
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
        # Without the first number, from which the sentence's number of preceding sentences is drawn.
        is_dropped = self.draws.of(index).random_sample(1 + len(sentence))[1:] < self.probability
        return sentence.masked_fill(torch.from_numpy(is_dropped) & sentence.ne(self.eos), self.unk)
