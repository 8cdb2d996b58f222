"""Every row of every batch has its own preceding sentence, as text, in whatever order and company it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest

from fairseq_ctxgates.commands.preceding_sentences import main as preceding_sentences
from tests.helpers.corpus import binarize
from tests.helpers.models import build_model
from tests.helpers.preceding_sentences import (
    CORPORA,
    NULL,
    batches,
    check,
    check_corpus,
    make_context_task,
    make_corpus,
    predecessors,
    sentences_of,
    words,
    write_corpora,
)


@pytest.mark.parametrize(
    "options", [{}, {"left_pad_source": False}, {"required_seq_len_multiple": 8}], ids=lambda options: " ".join(options)
)
@pytest.mark.parametrize("limit", [{}, {"max_sentences": None, "max_tokens": 120}, {"max_sentences": 1}], ids=str)
def test_shuffled_batches(data: Path, options: Dict[str, Any], limit: Dict[str, Any]) -> None:
    task = make_context_task(data, **options)
    task.load_dataset("train")
    found = batches(task, "train", **limit)
    assert [batch["id"].tolist() for batch in found] != sorted(batch["id"].tolist() for batch in found)
    check_corpus(task, found, CORPORA["train"], left_pad=options.get("left_pad_source", True))
    multiple = options.get("required_seq_len_multiple", 1)
    assert all(batch["net_input"]["preceding_tokens"].size(1) % multiple == 0 for batch in found)


@pytest.mark.parametrize("longest", [3, 9])
def test_truncated_sources(data: Path, longest: int) -> None:
    task = make_context_task(data, truncate_source=True, max_source_positions=longest)
    task.load_dataset("train")
    found = batches(task, "train")
    check_corpus(task, found, CORPORA["train"], longest=longest)
    for name in ("src_tokens", "preceding_tokens"):
        assert max(batch["net_input"][name].size(1) for batch in found) == longest


def test_a_long_preceding_sentence_is_cut_at_its_beginning(data: Path) -> None:
    task = make_context_task(data, max_source_positions=6)
    task.load_dataset("train")
    found = [row for batch in batches(task, "train") for row in batch["net_input"]["preceding_tokens"]]
    cut = {" ".join(words(row, task, True)) for row in found}
    whole = {before for before in predecessors(CORPORA["train"]) if before}
    assert cut == {" ".join(NULL), *(" ".join([*before.split()[-5:], "</s>"]) for before in whole)}


def test_text_binarized_in_the_other_direction(tmp_path: Path) -> None:
    corpus = make_corpus([4, 1, 5], seed=4)
    binarize(tmp_path, {"train": [("w1", sentence) for sentence in sentences_of(corpus)]}, "en", "de")
    documents = tmp_path / "train.docids"
    documents.write_text("x\n" * 4 + "y\n" + "z\n" * 5)
    preceding_sentences([str(tmp_path), "-s", "de", "-t", "en", "--documents", f"train={documents}"])
    task = make_context_task(tmp_path)
    task.load_dataset("train")
    check_corpus(task, batches(task, "train"), corpus)


def test_data_directories_in_turn(data: Path, tmp_path: Path) -> None:
    other = make_corpus([3, 9, 1, 1, 20], seed=5, first=3000)
    write_corpora(tmp_path / "other", {"train": other})
    task = make_context_task(f"{data}:{tmp_path / 'other'}")
    task.load_dataset("valid")
    for epoch, corpus in ((1, CORPORA["train"]), (2, other), (3, CORPORA["train"])):
        task.load_dataset("train", epoch=epoch)
        check_corpus(task, batches(task, "train", epoch), corpus)
    check_corpus(task, batches(task, "valid"), CORPORA["valid"])


@pytest.mark.parametrize("upsample", [1, 2, 3])
def test_shards_of_which_the_first_is_repeated(data: Path, upsample: int) -> None:
    task = make_context_task(data, upsample_primary=upsample)
    task.load_dataset("train", combine=True)
    check_corpus(task, batches(task, "train"), CORPORA["train"] * upsample + CORPORA["train1"])


@pytest.mark.parametrize("split, combine", [("train", False), ("valid", False), ("valid", True)])
@pytest.mark.parametrize("upsample", [-1, 3])
def test_nothing_is_repeated_where_there_are_no_shards(data: Path, split: str, combine: bool, upsample: int) -> None:
    task = make_context_task(data, upsample_primary=upsample, preceding_length_ratio=100.0)
    task.load_dataset(split, combine=combine)
    check_corpus(task, batches(task, split), CORPORA[split])


def test_sentences_that_are_filtered_out(data: Path) -> None:
    """What is too long is left out, but is still given as a preceding sentence."""
    task = make_context_task(data)
    task.load_dataset("train")
    found = batches(task, "train", max_positions=(10, 10), ignore_invalid_inputs=True)
    sentences, preceding = sentences_of(CORPORA["train"]), predecessors(CORPORA["train"])
    short = [number for number, sentence in enumerate(sentences) if len(sentence.split()) <= 9]
    assert check(task, found, sentences, preceding) == short
    assert 10 < len(short) < len(sentences) - 10
    assert any(len((preceding[number] or "").split()) > 9 for number in short), "nothing was tested"


def test_every_sentence_filtered_out(data: Path) -> None:
    task = make_context_task(data)
    task.load_dataset("train")
    assert batches(task, "train", max_positions=(2, 2), ignore_invalid_inputs=True) == []


def test_a_model_that_reads_them_has_them_without_being_told(data: Path) -> None:
    task = make_context_task(data, load_preceding_sentences=False)
    build_model("isg_transformer", task)
    task.load_dataset("valid")
    check_corpus(task, batches(task, "valid"), CORPORA["valid"])
