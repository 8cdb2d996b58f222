"""Batches of sentences with preceding ones: their size, their padding, and nobody left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np
import pytest
from fairseq.data import FairseqDataset

from tests.helpers.preceding_sentences import (
    WORDS,
    Corpus,
    batches,
    check,
    check_corpus,
    make_context_task,
    make_corpus,
    padding,
    predecessors,
    sentences_of,
    write_corpora,
)


@pytest.mark.parametrize("max_tokens", [60, 400, 3000])
def test_max_tokens_counts_both_sentences_with_their_padding(varied: Tuple[Path, Corpus], max_tokens: int) -> None:
    task = make_context_task(varied[0])
    task.load_dataset("train")
    limits: Dict[str, Any] = {"max_sentences": None, "max_tokens": max_tokens}
    found = batches(task, "train", max_positions=(50, 50), ignore_invalid_inputs=True, **limits)
    sizes = [
        batch["net_input"]["src_tokens"].numel() + batch["net_input"]["preceding_tokens"].numel()
        for batch in found
        if len(batch["id"]) > 1
    ]
    assert max(sizes) <= max_tokens
    assert max(sizes) > 0.9 * max_tokens
    assert np.mean(sizes) > 0.6 * max_tokens, "the limit is made use of"


def test_long_targets_count_as_well(tmp_path: Path) -> None:
    corpus = make_corpus([20], seed=7, longest=3)
    targets = [" ".join(WORDS[10 : 10 + number % 20]) for number in range(20)]
    task = make_context_task(write_corpora(tmp_path, {"train": corpus}, {"train": targets}))
    task.load_dataset("train")
    found = batches(task, "train", max_sentences=None, max_tokens=60)
    check_corpus(task, found, corpus)
    assert max(batch["target"].numel() for batch in found) <= 60


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("limit", [{"max_sentences": 32}, {"max_sentences": None, "max_tokens": 1000}], ids=str)
def test_every_sentence_comes_once(varied: Tuple[Path, Corpus], limit: Dict[str, Any], multiple: int) -> None:
    """Also in training and with fairseq's default of 8, for which fairseq-fixed drops a last batch of fewer."""
    task = make_context_task(varied[0])
    task.load_dataset("train")
    found = batches(task, "train", required_batch_size_multiple=multiple, **limit)
    check_corpus(task, found, varied[1])


def test_batches_are_full(varied: Tuple[Path, Corpus]) -> None:
    """A batch of a few sentences would be a whole update of training."""
    task = make_context_task(varied[0])
    task.load_dataset("train")
    sizes = sorted(
        len(batch["id"]) for batch in batches(task, "train", max_sentences=32, required_batch_size_multiple=8)
    )
    assert len(sizes) > 10
    assert set(sizes[2:]) == {32}, "all but the end, and what fairseq-fixed drops there"


@pytest.mark.parametrize("multiple", [1, 8])
def test_a_preceding_sentence_longer_than_all_else(tmp_path: Path, multiple: int) -> None:
    """The sentence after it, which is the shortest, has more tokens than a band should have."""
    corpus = [[" ".join(["w3"] * 300), "0"], ["0 1 2", "0 1 3", "0 1 4"]]
    task = make_context_task(write_corpora(tmp_path, {"train": corpus}))
    task.load_dataset("train")
    limits: Dict[str, Any] = {"max_sentences": None, "max_tokens": 20, "max_positions": (30, 30)}
    found = batches(task, "train", ignore_invalid_inputs=True, required_batch_size_multiple=multiple, **limits)
    assert sorted(number for batch in found for number in batch["id"].tolist()) == [1, 2, 3, 4]


@pytest.mark.parametrize("limit", [{"max_sentences": 32}, {"max_sentences": None, "max_tokens": 1000}], ids=str)
def test_little_padding(varied: Tuple[Path, Corpus], limit: Dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_context_task(varied[0])
    task.load_dataset("train")
    pad = task.source_dictionary.pad()
    assert padding(batches(task, "train", **limit), pad) < 1.5
    dataset = task.dataset("train")
    monkeypatch.setattr(
        dataset, "batch_by_size", lambda *args, **kwargs: FairseqDataset.batch_by_size(dataset, *args, **kwargs)
    )
    assert padding(batches(task, "train", **limit), pad) > 2, "the corpus is too easy"


@pytest.mark.parametrize("multiple", [1, 8])
def test_no_sentence_is_dropped_at_test_time_for_its_predecessor(tmp_path: Path, multiple: int) -> None:
    """A predecessor longer than any limit is itself left out, and what comes after it is translated."""
    long = " ".join(["w3"] * 300)
    corpus = [["0 1", long, "0 2", "0 3"], [long, long, "0 4"], ["0 5"] * 5]
    task = make_context_task(write_corpora(tmp_path, {"train": [["0"]], "test": corpus}))
    task.load_dataset("test")
    limits: Dict[str, Any] = {"max_tokens": 40, "max_positions": (30, 30), "ignore_invalid_inputs": True}
    found = batches(task, "test", max_sentences=None, required_batch_size_multiple=multiple, **limits)
    sentences = sentences_of(corpus)
    short = [number for number, sentence in enumerate(sentences) if sentence != long]
    assert check(task, found, sentences, predecessors(corpus)) == short
    assert [batch["id"].tolist() for batch in found if batch["net_input"]["preceding_tokens"].size(1) == 301] in (
        [[2], [6]],
        [[6], [2]],
    )
    # And where sentences of any length are translated:
    found = batches(task, "test", max_sentences=4)
    check_corpus(task, found, corpus)
