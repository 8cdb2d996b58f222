"""What is refused: streams that are not of the data, and models that do not read them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np
import pytest
from omegaconf import OmegaConf

from fairseq_ctxgates.data.data_directory import Split, fingerprint
from fairseq_ctxgates.data.side_stream_files import write_side_stream
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_sentences import PrecedingSentences
from tests.helpers.corpus import write_split
from tests.helpers.models import build_model, make_task
from tests.helpers.preceding_sentences import (
    CORPORA,
    DICTIONARY,
    batches,
    check,
    make_context_task,
    make_corpus,
    sentences_of,
)

REMEDY = "run: ctxgates preceding-sentences"

CRITERION = OmegaConf.create({"_name": "cross_entropy", "sentence_avg": False})


@pytest.fixture
def copied(data: Path, tmp_path: Path) -> Path:
    """A copy of the data directory that may be changed."""
    return Path(shutil.copytree(data, tmp_path / "data"))


@pytest.fixture(
    params=[{}, {"load_preceding_sentences": False, "concatenate_preceding": "<sep>"}], ids=["gate", "concatenation"]
)
def use(request: pytest.FixtureRequest) -> Dict[str, Any]:
    """The options for the two ways of using the stream."""
    return dict(request.param)


def check_refused(data: Path, message: str, use: Dict[str, Any]) -> None:
    with pytest.raises(UserError, match=message):
        make_context_task(data, **use).load_dataset("train")


def test_data_that_were_shuffled(copied: Path, use: Dict[str, Any]) -> None:
    sentences = sentences_of(CORPORA["train"])
    write_split(copied / "train.de-en.de", sentences[1:] + sentences[:1], DICTIONARY)
    check_refused(copied, f"train.preceding.de-en.bin was made for other data.*{REMEDY} {copied} -s de -t en", use)


def test_data_that_were_binarized_again(copied: Path, use: Dict[str, Any]) -> None:
    write_split(copied / "train.de-en.de", sentences_of(make_corpus([60], seed=8)), DICTIONARY)
    check_refused(copied, f"train.preceding.de-en.bin was made for other data.*{REMEDY} {copied} -s de -t en", use)


def test_another_dictionary(copied: Path, use: Dict[str, Any]) -> None:
    path = copied / "dict.de.txt"
    first, second, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *others]))
    check_refused(copied, f"other data or dictionaries.*{REMEDY}", use)


def test_the_target_may_change(copied: Path, use: Dict[str, Any]) -> None:
    """The stream depends on the source alone."""
    path = copied / "dict.en.txt"
    first, second, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *others]))
    task = make_context_task(copied, **use)
    task.load_dataset("train")
    assert [stream.name for stream in task.dataset("train").streams] == ["preceding"]


def test_no_stream(copied: Path, use: Dict[str, Any]) -> None:
    for path in copied.glob("train.preceding.*"):
        path.unlink()
    check_refused(
        copied,
        f"train.preceding.de-en.idx not found; {REMEDY} {copied} -s de -t en --documents train=FILE",
        use,
    )


def test_a_shard_without_a_stream(copied: Path, use: Dict[str, Any]) -> None:
    (copied / "train1.preceding.de-en.idx").unlink()
    task = make_context_task(copied, upsample_primary=1, **use)
    with pytest.raises(UserError, match=f"train1.preceding.de-en.idx not found; {REMEDY} .*train1=FILE"):
        task.load_dataset("train", combine=True)


@pytest.mark.parametrize(
    "number, row, message",
    [
        (5, [5], "row 6 names row 6 as its preceding sentence, which is not one before it"),
        (5, [6], "row 6 names row 7 as its preceding sentence"),
        (5, [60], "row 6 names row 61 as its preceding sentence"),
        (5, [-1], "row 6 names row 0 as its preceding sentence"),
        (0, [0], "row 1 names row 1 as its preceding sentence"),
        (5, [3, 4], "row 6 names more than one preceding sentence"),
    ],
    ids=["itself", "forward", "outside", "negative", "first", "two"],
)
def test_a_stream_that_points_elsewhere(
    copied: Path, use: Dict[str, Any], number: int, row: List[int], message: str
) -> None:
    rows: List[List[int]] = [[] for _ in range(60)]
    rows[number] = row
    write_rows(copied, rows)
    check_refused(copied, f"train.preceding.de-en.idx: {message}.*{REMEDY}", use)


def test_a_stream_of_another_length(copied: Path, use: Dict[str, Any]) -> None:
    write_rows(copied, [[]] * 59)
    check_refused(copied, f"train.preceding.de-en.idx has 59 rows for 60 sentences.*{REMEDY}", use)


def write_rows(data: Path, rows: Sequence[Sequence[int]]) -> None:
    """A stream with these rows and the right fingerprint."""
    split = Split(data, "train", "de", "en")
    metadata = {"fingerprint": fingerprint(split, PrecedingSentences.languages)}
    write_side_stream(split.stream_prefix("preceding"), np.int64, metadata, rows)


def test_any_earlier_sentence_may_be_the_preceding_one(copied: Path) -> None:
    """A stream made elsewhere need not name the row just before."""
    write_rows(copied, [[]] + [[number // 2] for number in range(1, 60)])
    task = make_context_task(copied)
    task.load_dataset("train")
    sentences = sentences_of(CORPORA["train"])
    preceding = [None, *(sentences[number // 2] for number in range(1, 60))]
    assert check(task, batches(task, "train"), sentences, preceding) == list(range(60))


@pytest.mark.parametrize(
    "arch, options",
    [("isg_transformer", {}), ("transformer", {"concatenate_preceding": "<sep>"})],
)
def test_batch_buckets(arch: str, options: Dict[str, Any]) -> None:
    task = make_task(num_batch_buckets=2, **options)
    build_model(arch, task)
    with pytest.raises(UserError, match="--num-batch-buckets cannot be combined with preceding sentences"):
        task.build_criterion(CRITERION)


def test_a_model_that_does_not_read_preceding_sentences() -> None:
    task = make_task(load_preceding_sentences=True)
    build_model("transformer", task)
    with pytest.raises(UserError, match="--load-preceding-sentences needs an architecture.*--arch isg_transformer"):
        task.build_criterion(CRITERION)


def test_a_model_that_has_them_twice() -> None:
    task = make_task(concatenate_preceding="<sep>")
    build_model("isg_transformer", task)
    with pytest.raises(UserError, match="--concatenate-preceding is for architectures without a gate"):
        task.build_criterion(CRITERION)


@pytest.mark.parametrize(
    "arch, options",
    [("isg_transformer", {"load_preceding_sentences": True}), ("transformer", {"concatenate_preceding": "<sep>"})],
)
def test_a_model_that_reads_them(arch: str, options: Dict[str, Any]) -> None:
    task = make_task(**options)
    build_model(arch, task)
    assert task.build_criterion(CRITERION).task is task
