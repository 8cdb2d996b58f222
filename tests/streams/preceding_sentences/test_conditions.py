"""Which sentences are trained on: --preceding-length-ratio and --preceding-max-length."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from fairseq_ctxgates.errors import UserError
from tests.helpers.preceding_sentences import (
    WORDS,
    Corpus,
    batches,
    check,
    make_context_task,
    of_lengths,
    predecessors,
    sentences_of,
    write_corpora,
)


def kept(
    tmp_path: Path, corpus: Corpus, targets: Optional[List[str]] = None, **options: Any
) -> Tuple[List[int], List[int]]:
    """The rows of train and of valid, which are the same data, that come in batches."""
    data = write_corpora(
        tmp_path / "data", {"train": corpus, "valid": corpus}, {"train": targets, "valid": targets} if targets else None
    )
    task = make_context_task(data, **options)
    found = []
    for split in ("train", "valid"):
        task.load_dataset(split)
        of_split = batches(task, split, required_batch_size_multiple=8)
        found.append(check(task, of_split, sentences_of(corpus), predecessors(corpus)))
    return found[0], found[1]


def test_length_ratio(tmp_path: Path) -> None:
    """Twice as long either way is kept, one more word is not; a document's first sentence is, whatever its length."""
    corpus = of_lengths([4, 8, 4, 9, 9, 4], [25, 13, 6, 6], [1], [0, 1])
    train, valid = kept(tmp_path, corpus, preceding_length_ratio=2.0)
    assert train == [0, 1, 2, 4, 6, 7, 9, 10, 11, 12]
    assert valid == list(range(13))


def test_length_ratio_between_whole_numbers(tmp_path: Path) -> None:
    assert kept(tmp_path, of_lengths([2, 3, 5, 7]), preceding_length_ratio=1.5)[0] == [0, 1, 3]


def test_max_length(tmp_path: Path) -> None:
    """None of source, target and preceding sentence is longer than 8 words, end of sentence not counted."""
    corpus = of_lengths([8, 8, 9, 8, 8], [7, 1], [8, 8])
    targets = [" ".join(WORDS[:length]) for length in (1, 8, 1, 1, 9, 8, 9, 1, 1)]
    train, valid = kept(tmp_path, corpus, targets, preceding_max_length=8)
    # Left out: 2 for its source, 3 for its predecessor, 4 and 6 for their targets.
    assert train == [0, 1, 5, 7, 8]
    assert valid == list(range(9))


@pytest.mark.parametrize("longest", [8, 9, 100])
def test_conditions_of_truncated_sources(tmp_path: Path, longest: int) -> None:
    """They are of what is read: what is cut to 7 words and end of sentence is short enough, one word more is not."""
    corpus = of_lengths([7, 8, 3, 9, 4, 4])
    options = {"truncate_source": True, "max_source_positions": longest, "preceding_max_length": 7}
    task = make_context_task(write_corpora(tmp_path, {"train": corpus}), **options)
    task.load_dataset("train")
    found = [number for batch in batches(task, "train") for number in batch["id"].tolist()]
    assert sorted(found) == (list(range(6)) if longest == 8 else [0, 5])


def test_conditions_are_of_whole_preceding_sentences(tmp_path: Path) -> None:
    """Also where only the end of a long one is read: a sentence after one of 20 words is left out."""
    corpus = of_lengths([20, 7, 7])
    task = make_context_task(write_corpora(tmp_path, {"train": corpus}), max_source_positions=8, preceding_max_length=7)
    task.load_dataset("train")
    found = [number for batch in batches(task, "train") for number in batch["id"].tolist()]
    assert found == [2]


def test_both_conditions(tmp_path: Path) -> None:
    corpus = of_lengths([3, 6, 7, 2, 2])
    assert kept(tmp_path, corpus, preceding_length_ratio=2.0, preceding_max_length=6)[0] == [0, 1, 4]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"preceding_max_length": 4}, "--preceding-max-length"),
        (
            {"preceding_length_ratio": 2.0, "preceding_max_length": 4},
            "--preceding-length-ratio and --preceding-max-length",
        ),
    ],
)
def test_nothing_is_left(tmp_path: Path, options: Dict[str, Any], named: str) -> None:
    task = make_context_task(write_corpora(tmp_path, {"train": of_lengths([5, 6], [7])}), **options)
    with pytest.raises(UserError, match=f"train: {named} leave no sentence"):
        task.load_dataset("train")


def test_conditions_on_repeated_shards(tmp_path: Path) -> None:
    corpora = {"train": of_lengths([4, 9], [3]), "train1": of_lengths([2, 5, 6])}
    task = make_context_task(write_corpora(tmp_path, corpora), upsample_primary=2, preceding_length_ratio=2.0)
    task.load_dataset("train", combine=True)
    corpus = corpora["train"] * 2 + corpora["train1"]
    found = batches(task, "train")
    assert check(task, found, sentences_of(corpus), predecessors(corpus)) == [0, 2, 3, 5, 6, 8]
