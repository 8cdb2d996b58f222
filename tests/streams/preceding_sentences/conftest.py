"""Data directories that the tests of preceding sentences share."""

from __future__ import annotations

from pathlib import Path
from typing import Tuple

import numpy as np
import pytest

from tests.helpers.preceding_sentences import CORPORA, WORDS, Corpus, sentences_of, write_corpora


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with train, train1 and valid. Not to be changed."""
    return write_corpora(tmp_path_factory.mktemp("documents"), CORPORA)


def varied_corpus(number: int, seed: int) -> Corpus:
    """Documents whose sentences differ in length as those of real text do: many short, a few very long ones."""
    rng = np.random.RandomState(seed)
    lengths = np.clip(rng.lognormal(2.5, 0.9, number), 1, 150).astype(int)
    documents, start = [], 0
    while start < number:
        end = min(start + rng.randint(1, 40), number)
        documents.append([" ".join(rng.choice(WORDS[:30], length)) for length in lengths[start:end]])
        start = end
    return documents


@pytest.fixture(scope="session")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Tuple[Path, Corpus]:
    corpus = varied_corpus(2500, seed=6)
    return write_corpora(tmp_path_factory.mktemp("varied"), {"train": corpus}), corpus


@pytest.fixture(scope="session")
def with_targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpora, in which each target is its source in reverse."""
    targets = {name: [" ".join(sentence.split()[::-1]) for sentence in sentences_of(c)] for name, c in CORPORA.items()}
    return write_corpora(tmp_path_factory.mktemp("targets"), CORPORA, targets)
