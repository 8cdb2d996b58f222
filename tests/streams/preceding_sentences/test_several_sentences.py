"""Several preceding sentences, by the distance that each has."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

from tests.helpers.preceding_sentences import (
    CORPORA,
    LINES,
    Corpus,
    batches,
    check_several,
    interact,
    make_task_of_a_model,
    of_lengths,
    padding,
    several_predecessors,
    write_corpora,
)


@pytest.mark.parametrize("number", [2, 3, 20])
@pytest.mark.parametrize("left_pad", [True, False])
def test_several_preceding_sentences(data: Path, number: int, left_pad: bool) -> None:
    """The data directory was made for one, and serves any number."""
    task = make_task_of_a_model(data, number, left_pad_source=left_pad)
    task.load_dataset("train")
    check_several(task, batches(task, "train"), several_predecessors(CORPORA["train"], number), left_pad)


def test_several_preceding_sentences_of_shards(data: Path) -> None:
    task = make_task_of_a_model(data, 3, upsample_primary=2)
    task.load_dataset("train", combine=True)
    corpus = CORPORA["train"] * 2 + CORPORA["train1"]
    check_several(task, batches(task, "train"), several_predecessors(corpus, 3), True)


def test_an_empty_line_ends_a_document_for_all(tmp_path: Path) -> None:
    corpus = [["0 1", "0 2", "", "0 3", "0 4", "0 5"], ["0 6"]]
    assert several_predecessors(corpus, 2) == [[], ["0 1"], [], [], ["0 3"], ["0 3", "0 4"], []]
    task = make_task_of_a_model(write_corpora(tmp_path, {"train": corpus}), 2)
    task.load_dataset("train")
    check_several(task, batches(task, "train"), several_predecessors(corpus, 2), True)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("limit", [{"max_sentences": 32}, {"max_sentences": None, "max_tokens": 1000}], ids=str)
def test_little_padding_where_sentences_are_encoded(
    varied: Tuple[Path, Corpus], limit: Dict[str, Any], number: int
) -> None:
    """Of the rows that attention reads, and of the groups of sentences that are encoded."""
    task = make_task_of_a_model(varied[0], number)
    task.load_dataset("train")
    found = batches(task, "train", **limit)
    pad = task.source_dictionary.pad()
    assert padding(found, pad) < 1.5
    if number > 1:
        encoded = sum(group.numel() for batch in found for group in batch["net_input"]["preceding_groups"])
        assert encoded / sum(int((b["net_input"]["preceding_tokens"] != pad).sum()) for b in found) < 1.5


def test_conditions_are_of_every_preceding_sentence(tmp_path: Path) -> None:
    corpus = of_lengths([4, 8, 5, 4, 4])
    options = {"preceding_max_length": 7}
    for number, expected in ((1, [0, 3, 4]), (2, [0, 4])):
        data = write_corpora(tmp_path / str(number), {"train": corpus})
        task = make_task_of_a_model(data, number, **options)
        task.load_dataset("train")
        assert sorted(row for batch in batches(task, "train") for row in batch["id"].tolist()) == expected


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 100])
def test_several_lines_of_interactive(data: Path, buffer_size: int) -> None:
    """Also over the borders of several buffers."""
    task = make_task_of_a_model(data, 3)
    found = list(interact(task, LINES, buffer_size))
    check_several(task, found, several_predecessors([LINES], 3), True)
