"""Side streams: every row reaches its sentence, in whatever order fairseq asks; what does not fit is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import AbstractSet, Any, Dict, Iterator, List, Sequence, Type

import numpy as np
import pytest
import torch
from fairseq.data import data_utils
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.dataclass import FairseqDataclass

from fairseq_ctxgates.context_gates.gate_labels import IGNORE
from fairseq_ctxgates.data import data_directory, side_stream_files
from fairseq_ctxgates.data.data_directory import Split, digest_of, find_splits, fingerprint, load_rows
from fairseq_ctxgates.data.side_stream import SideStream
from fairseq_ctxgates.data.side_stream_files import write_side_stream, write_side_streams
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.tasks import task_streams
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import labels_of, make_pairs, setup_task, write_gate_labels
from tests.helpers.files import contents
from tests.helpers.models import build_model


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with train, valid and valid1, each with gate labels. Not to be changed."""
    return make_data(tmp_path_factory.mktemp("labelled"))


@pytest.fixture
def data(labelled: Path, tmp_path: Path) -> Path:
    """A copy of the same that may be changed."""
    return Path(shutil.copytree(labelled, tmp_path / "data"))


@pytest.fixture
def other(labelled: Path, tmp_path: Path) -> Path:
    """A second data directory, with the dictionaries of the first, and labels."""
    folder = tmp_path / "other"
    binarize(folder, {"train": make_pairs(45, seed=7)}, "de", "en")
    for lang in ("de", "en"):
        shutil.copy(labelled / f"dict.{lang}.txt", folder)
    write_gate_labels(folder)
    return folder


def make_data(folder: Path, seed: int = 1) -> Path:
    splits = {"train": make_pairs(60, seed), "valid": make_pairs(10, seed + 1), "valid1": make_pairs(7, seed + 2)}
    binarize(folder, splits, "de", "en")
    write_gate_labels(folder, list(splits))
    return folder


def batches(task: Any, split: str, epoch: int = 1, **options: Any) -> Iterator[Dict[str, Any]]:
    """A shuffled epoch of a split, as fairseq-train iterates over it."""
    options = {"max_sentences": 8, "seed": 1, **options}
    yield from task.get_batch_iterator(task.dataset(split), epoch=epoch, **options).next_epoch_itr(shuffle=True)


def check_labels(found: List[Dict[str, Any]], sentences: int) -> None:
    """Every sentence came once, and each target token with its own label."""
    assert sorted(number for batch in found for number in batch["id"].tolist()) == list(range(sentences))
    for batch in found:
        assert np.array_equal(batch["gate_labels"].numpy(), labels_of(batch["target"]))
    assert any((batch["target"] == 1).any() for batch in found), "no padding: nothing was tested"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"left_pad_target": True},
        {"left_pad_source": False},
        {"truncate_source": True, "max_source_positions": 4},
        {"required_seq_len_multiple": 8},
        {"required_seq_len_multiple": 8, "left_pad_target": True},
    ],
    ids=lambda options: " ".join(options),
)
def test_labels_follow_batch_order(labelled: Path, options: Dict[str, Any]) -> None:
    task = setup_task(labelled, **options)
    task.load_dataset("train")
    found = list(batches(task, "train"))
    check_labels(found, 60)
    if options.get("left_pad_target"):
        assert any((batch["target"][:, 0] == 1).any() for batch in found)
    if options.get("truncate_source"):
        assert max(batch["net_input"]["src_tokens"].size(1) for batch in found) == 4
    if options.get("required_seq_len_multiple"):
        assert all(batch["target"].size(1) % 8 == 0 for batch in found)


def test_the_log_says_what_validation_lacks(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Labels are for training, and validation does without them, with fewer columns in the log."""
    for path in data.glob("valid.gate.*"):
        path.unlink()
    task = setup_task(data)
    with caplog.at_level("INFO"):
        task.load_dataset("valid")
        task.load_dataset("valid1")
    messages = [record.getMessage() for record in caplog.records if "side stream" in record.getMessage()]
    assert messages == ["valid: without the side stream gate, which only training needs", "valid1: side streams gate"]


def test_text_has_no_labels(data: Path) -> None:
    """--dataset-impl raw: the remedy is not the command for labels alone, which would refuse the text."""
    for path in data.glob("train.*"):
        path.unlink()
    for lang in ("de", "en"):
        (data / f"train.de-en.{lang}").write_text("q1 q2\n")
    task = setup_task(data, dataset_impl="raw")
    message = (
        r"train.de-en.en is text, .*: binarize it with fairseq-preprocess --dataset-impl mmap; run: ctxgates gate-l"
    )
    with pytest.raises(UserError, match=message):
        task.load_dataset("train")


def test_warnings_about_the_training_data(
    data: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, of the training alone, and from the first process alone."""
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        caplog.clear()
        task = setup_task(data)
        build_model("car_transformer", task)
        for split, epoch in (("valid", 1), ("train", 1), ("train", 2)):
            task.load_dataset(split, epoch=epoch)
        assert caplog.text.count("too few to learn from") == (rank == 0)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.process)])
def test_each_token_has_its_label_whatever_the_number_of_loader_workers(labelled: Path, workers: int) -> None:
    task = setup_task(labelled)
    task.load_dataset("train")
    check_labels(list(batches(task, "train", num_workers=workers)), 60)


def test_text_binarized_in_the_other_direction(tmp_path: Path) -> None:
    pairs = make_pairs(30, seed=5)
    binarize(tmp_path, {"train": [(english, german) for german, english in pairs]}, "en", "de")
    write_gate_labels(tmp_path)
    assert (tmp_path / "train.gate.de-en.idx").exists()
    task = setup_task(tmp_path)
    task.load_dataset("train")
    assert task.dataset("train")[0]["target"].numel() == len(pairs[0][1].split()) + 1
    check_labels(list(batches(task, "train")), 30)


def test_data_directories_in_turn(labelled: Path, other: Path) -> None:
    task = setup_task(f"{labelled}:{other}")
    task.load_dataset("valid")
    for epoch, sentences in ((1, 60), (2, 45), (3, 60)):
        task.load_dataset("train", epoch=epoch)
        check_labels(list(batches(task, "train", epoch)), sentences)


def test_several_valid_subsets(labelled: Path) -> None:
    task = setup_task(labelled)
    for split, sentences in (("valid", 10), ("valid1", 7)):
        task.load_dataset(split, combine=False)
        check_labels(list(batches(task, split)), sentences)


def test_combined_valid_subsets(labelled: Path) -> None:
    task = setup_task(labelled, upsample_primary=2)
    task.load_dataset("valid", combine=True)
    check_labels(list(batches(task, "valid")), 10 + 10 + 7)


def test_labels_only_where_there_are_any(data: Path) -> None:
    (data / "valid.gate.de-en.idx").unlink()
    task = setup_task(data, upsample_primary=1)
    for split in ("train", "valid", "valid1"):
        task.load_dataset(split)
        assert all(("gate_labels" in batch) == (split != "valid") for batch in batches(task, split))
    task.load_dataset("valid", combine=True)
    assert not any("gate_labels" in batch for batch in batches(task, "valid"))


def test_labels_only_when_asked_for(labelled: Path) -> None:
    task = setup_task(labelled, load_gate_labels=False)
    task.load_dataset("train")
    assert not any("gate_labels" in batch for batch in batches(task, "train"))


@pytest.mark.parametrize("limit", [{"max_sentences": 8}, {"max_sentences": None, "max_tokens": 40}], ids=str)
@pytest.mark.parametrize("load_labels", [True, False])
def test_no_sentence_is_lost(labelled: Path, load_labels: bool, limit: Dict[str, Any]) -> None:
    """fairseq-fixed drops a last batch of fewer sentences than --required-batch-size-multiple, 8 by default."""
    task = setup_task(labelled, load_gate_labels=load_labels)
    task.load_dataset("valid")
    found = batches(task, "valid", required_batch_size_multiple=8, **limit)
    assert sorted(number for batch in found for number in batch["id"].tolist()) == list(range(10))


@pytest.mark.process
@pytest.mark.parametrize("buffer_size", [0, 10])
def test_loader_workers_end_with_their_epoch(labelled: Path, buffer_size: int) -> None:
    """With --num-workers, and no later than when the next epoch or validation begins; a training that is validated
    keeps its own. Left to the garbage collector they cost five seconds each."""
    task = setup_task(labelled)
    for split in ("train", "valid"):
        task.load_dataset(split)

    made: List[Any] = []

    def epoch_of(split: str, epoch: int) -> Any:
        options = {"max_sentences": 8, "seed": 1, "num_workers": 2, "data_buffer_size": buffer_size}
        iterator = task.get_batch_iterator(task.dataset(split), epoch=epoch, **options)
        made.append(iterator)
        return iterator, iterator.next_epoch_itr(shuffle=True)

    def workers_of(iterator: Any) -> List[Any]:
        return list(iterator.dataloader._iterator._workers)

    training, batches_of_first = epoch_of("train", 1)
    found = [next(batches_of_first)]
    _, batches_of_valid = validation = epoch_of("valid", 1)
    check_labels(list(batches_of_valid), 10)
    of_training, of_validation = workers_of(training), workers_of(validation[0])
    assert all(worker.is_alive() for worker in [*of_training, *of_validation])
    epoch_of("valid", 1)
    assert not any(worker.is_alive() for worker in of_validation)
    check_labels([*found, *batches_of_first], 60)
    assert all(worker.is_alive() for worker in of_training)
    second, batches_of_second = epoch_of("train", 2)
    assert not any(worker.is_alive() for worker in of_training)
    check_labels(list(batches_of_second), 60)
    of_second = workers_of(second)
    epoch_of("valid", 2)
    assert not any(worker.is_alive() for worker in of_second), "the epoch was over"
    check_labels(list(training.next_epoch_itr(shuffle=True)), 60)  # the first is used again
    end_workers(made)


@pytest.mark.process
@pytest.mark.parametrize("buffer_size", [0, 10])
def test_loader_workers_end_with_a_validation_that_was_broken_off(labelled: Path, buffer_size: int) -> None:
    """``--max-valid-steps``"""
    task = setup_task(labelled)
    task.load_dataset("valid")
    options = {"max_sentences": 1, "num_workers": 1, "data_buffer_size": buffer_size}
    iterator = task.get_batch_iterator(task.dataset("valid"), **options)
    for _ in range(2):
        next(iterator.next_epoch_itr(shuffle=False))
        (worker,) = iterator.dataloader._iterator._workers
        assert worker.is_alive()
        iterator = task.get_batch_iterator(task.dataset("valid"), **options)
        assert not worker.is_alive()


def end_workers(iterators: Sequence[Any]) -> None:
    """End all that are left; the processes that a later test forks would wait for them."""
    for iterator in iterators:
        if iterator.dataloader is not None and iterator.dataloader._iterator is not None:
            iterator.dataloader._iterator._shutdown_workers()


# A stream that is not in the package: its rows are read by the model, so they count towards --max-tokens.


class Sketches(SideStream[FairseqDataclass]):
    """Another rendering of the source sentence, beside it in the batch."""

    name = "sketch"
    made_by = "make-sketches {data}"
    languages = ("source",)
    Config = FairseqDataclass

    @classmethod
    def is_wanted(cls, options: FairseqDataclass, required: AbstractSet[str]) -> bool:
        return True

    def num_tokens(self, indices: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.maximum(tokens, self.rows.sizes[indices])

    def add_to_batch(self, batch: Dict[str, Any]) -> None:
        rows = [self.rows[index].long() for index in batch["id"].tolist()]
        batch["net_input"]["sketch"] = data_utils.collate_tokens(rows, pad_idx=0)


def write_sketches(split: Split, rows: List[List[int]]) -> None:
    metadata = {"fingerprint": fingerprint(split, Sketches.languages)}
    write_side_stream(split.stream_prefix("sketch"), np.int32, metadata, rows)


@pytest.fixture
def with_sketches(data: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The task with the stream above registered, on data where every tenth sentence has a long sketch."""
    rows = [[number + 1] * (50 if number % 10 == 0 else 3) for number in range(60)]
    write_sketches(find_splits(data, "de", "en")[0], rows)
    monkeypatch.setattr(task_streams, "STREAMS", (*task_streams.STREAMS, Sketches))
    return setup_task(data)


def test_a_new_stream_is_one_class(with_sketches: Any) -> None:
    with_sketches.load_dataset("train")
    found = list(batches(with_sketches, "train"))
    check_labels(found, 60)
    for batch in found:
        assert torch.equal(batch["net_input"]["sketch"][:, 0], batch["id"] + 1)


def test_max_tokens_counts_what_a_stream_adds(with_sketches: Any) -> None:
    with_sketches.load_dataset("train")
    found = list(batches(with_sketches, "train", max_sentences=None, max_tokens=100))
    check_labels(found, 60)
    assert max(batch["net_input"]["sketch"].numel() for batch in found) == 100
    assert max(batch["target"].numel() for batch in found) > 60, "the batches without long sketches are large"
    dataset = with_sketches.dataset("train")
    assert (dataset.num_tokens(10), dataset.num_tokens(11)) == (50, dataset.dataset.num_tokens(11))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_files_are_those_of_fairseq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Type[np.generic]) -> None:
    """Rows of one sentence and of several, with an index of several pieces."""
    rows = [[number] * (number % 4) for number in range(50)]
    theirs = MMapIndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    for row in rows:
        theirs.add_item(torch.tensor(row, dtype=torch.int64))
    theirs.finalize(str(tmp_path / "theirs.idx"))
    for module in (side_stream_files, data_directory):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    assert [row.tolist() for row in load_rows(tmp_path / "theirs")] == rows
    with write_side_streams({tmp_path / "ours": {}}, dtype) as writers:
        writers[tmp_path / "ours"].add_all(np.concatenate(rows[:40]), [len(row) for row in rows[:40]])
        for row in rows[40:]:
            writers[tmp_path / "ours"].add(row)
    for end in ("bin", "idx"):
        assert (tmp_path / f"ours.{end}").read_bytes() == (tmp_path / f"theirs.{end}").read_bytes()


def test_a_stream_of_empty_rows(data: Path) -> None:
    split = find_splits(data, "de", "en")[0]
    write_sketches(split, [[] for _ in range(60)])
    task = setup_task(data)
    task.load_dataset("train")
    stream = Sketches.load([split], [1], task.dataset("train").dataset, task.cfg, task.cfg)
    assert len(stream.rows) == 60
    assert all(stream.rows[number].numel() == 0 for number in range(60))


# Writing: whole or not at all


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=["kill", "full disk"]
)
def test_interrupted_writer_leaves_the_old_stream(data: Path, error: BaseException) -> None:
    before = contents(data)
    with pytest.raises(type(error)):
        with write_side_streams({data / "train.gate.de-en": {}}, np.uint8) as writers:
            writers[data / "train.gate.de-en"].add(np.zeros(3))
            raise error
    assert contents(data) == before


def test_failure_while_finishing_leaves_the_old_stream(data: Path) -> None:
    before = contents(data)
    with pytest.raises(TypeError):
        write_side_stream(data / "train.gate.de-en", np.uint8, {"options": object()}, [np.zeros(3)])
    assert contents(data) == before


def test_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        with write_side_streams({tmp_path / "train.gate.de-en": {}}, np.uint8):
            raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_stream_without_its_json_is_refused(data: Path) -> None:
    """What a kill between the writer's last renames leaves behind."""
    (data / "train.gate.de-en.json").unlink()
    refused(data, "train.gate.de-en.json", REMEDY)


# Data that does not fit

REMEDY = "run: ctxgates gate-labels"


def refused(data: Path, *parts: str, split: str = "train") -> None:
    """Loading a split fails before anything is done with it, with a message that has these parts."""
    with pytest.raises(UserError) as error:
        setup_task(data).load_dataset(split)
    for part in (str(data), *parts):
        assert part in str(error.value)


def test_missing_labels_on_train(data: Path) -> None:
    (data / "train.gate.de-en.idx").unlink()
    refused(data, "train.gate.de-en.idx not found", f"{REMEDY} {data} -s de -t en")


def test_data_binarized_again(data: Path) -> None:
    binarize(data, {"train": make_pairs(60, seed=9)}, "de", "en")
    refused(data, "train.gate.de-en", "other data", REMEDY)


def test_shuffled_data(data: Path) -> None:
    pairs = make_pairs(60, seed=1)
    binarize(data, {"train": pairs[1:] + pairs[:1]}, "de", "en")
    refused(data, "train.gate.de-en", "other data", REMEDY)


def test_a_change_at_the_end_of_a_large_text(tmp_path: Path) -> None:
    """The fingerprint is one of the whole file."""
    (tmp_path / "one").write_bytes(bytes(3_000_000))
    (tmp_path / "other").write_bytes(bytes(2_999_999) + b"1")
    assert digest_of(tmp_path / "one") != digest_of(tmp_path / "other")


@pytest.mark.parametrize("lang", ["de", "en"])
def test_changed_dictionary(data: Path, lang: str) -> None:
    path = data / f"dict.{lang}.txt"
    first, second, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *others]))
    refused(data, "train.gate.de-en", "dictionaries", REMEDY)


def write_rows(data: Path, rows: List[np.ndarray]) -> None:
    metadata = {"fingerprint": fingerprint(Split(data, "train", "de", "en"))}
    write_side_stream(data / "train.gate.de-en", np.uint8, metadata, rows)


def test_wrong_number_of_rows(data: Path) -> None:
    target = Split(data, "train", "de", "en").load_language("en")
    write_rows(data, [labels_of(row) for row in target][:-1])
    refused(data, "train.gate.de-en", "59 rows", "60 sentences", REMEDY)


def test_wrong_length_of_a_row(data: Path) -> None:
    rows = [labels_of(row) for row in Split(data, "train", "de", "en").load_language("en")]
    expected = len(rows[41])
    rows[41] = np.append(rows[41], IGNORE)
    write_rows(data, rows)
    refused(data, "train.gate.de-en", "row 42", f"{expected + 1} labels", f"{expected} target tokens", REMEDY)


@pytest.mark.parametrize("extension", ["bin", "idx"])
def test_truncated_stream(data: Path, extension: str) -> None:
    path = data / f"train.gate.de-en.{extension}"
    path.write_bytes(path.read_bytes()[:-5])
    refused(data, f"train.gate.de-en.{extension}", REMEDY)


def test_stream_of_another_run(data: Path) -> None:
    """The rows of one stream under the index of another, as copying by hand leaves them."""
    rows = data / "train.gate.de-en.bin"
    rows.write_bytes(bytes(len(rows.read_bytes())))
    refused(data, "train.gate.de-en.{bin,idx,json} are damaged", REMEDY)


def test_splits_of_different_runs(data: Path) -> None:
    """The streams of a directory are made in the same way: none is accepted beside one made with other options."""
    path = data / "valid.gate.de-en"
    rows = [labels_of(row) for row in Split(data, "valid", "de", "en").load_language("en")]
    metadata = {"fingerprint": fingerprint(Split(data, "valid", "de", "en")), "options": {"strategy": "mean"}}
    write_side_stream(path, np.uint8, metadata, rows)
    for split in ("train", "valid"):
        refused(data, "train.gate.de-en", "valid.gate.de-en", "one run", "options differ", REMEDY, split=split)


def test_a_later_directory_without_labels(labelled: Path, other: Path) -> None:
    """Said before the first epoch, which is trained on the first directory."""
    (other / "train.gate.de-en.idx").unlink()
    message = f"{other}/train.gate.de-en.idx not found; {REMEDY} {labelled}:{other} -s de -t en"
    with pytest.raises(UserError, match=re.escape(message)):
        setup_task(f"{labelled}:{other}").load_dataset("train")


def test_directories_of_different_runs(labelled: Path, other: Path) -> None:
    split = Split(other, "train", "de", "en")
    metadata = {"fingerprint": fingerprint(split), "options": {"strategy": "mean"}}
    write_side_stream(other / "train.gate.de-en", np.uint8, metadata, map(labels_of, split.load_language("en")))
    task = setup_task(f"{labelled}:{other}")
    task.load_dataset("valid")
    with pytest.raises(UserError, match=r"one run of the command \(options differ\); run: .* [^ ]*:[^ ]*/other -s de"):
        task.load_dataset("train")


@pytest.mark.parametrize("subsets", ["train", "valid,train"])
def test_training_data_are_not_validated_on(labelled: Path, subsets: str) -> None:
    task = setup_task(labelled, valid_subset=subsets)
    with pytest.raises(UserError, match=f"--valid-subset {subsets} names the split that is trained on"):
        task.load_dataset("train")
    setup_task(labelled, valid_subset=subsets, load_gate_labels=False).load_dataset("train")
    setup_task(labelled, valid_subset=subsets, disable_validation=True).load_dataset("train")


def test_a_stream_without_digest(data: Path) -> None:
    path = data / "train.gate.de-en.json"
    metadata = json.loads(path.read_text())
    del metadata["digest"]
    path.write_text(json.dumps(metadata))
    refused(data, "train.gate.de-en.json", "earlier version", REMEDY)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_truncated_text(data: Path, split: str) -> None:
    path = data / f"{split}.de-en.en.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match=f"{split}.de-en.en.bin is truncated"):
        Split(data, split, "de", "en").load_language("en")
    refused(data, f"{split}.", split=split)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_empty_split(data: Path, split: str) -> None:
    binarize(data, {"train": make_pairs(60, seed=1), split: []}, "de", "en")
    with pytest.raises(UserError, match=f"{split}.de-en.de.bin .*empty"):
        Split(data, split, "de", "en").load_language("de")
    refused(data, f"{split}.de-en.de.bin", "empty", split=split)


def test_missing_dictionary(data: Path) -> None:
    (data / "dict.en.txt").unlink()
    with pytest.raises(UserError, match="dict.en.txt not found.*fairseq-preprocess"):
        fingerprint(Split(data, "train", "de", "en"))


def test_language_pair_that_does_not_exist(data: Path) -> None:
    with pytest.raises(UserError, match="fr-en.*--source-lang"):
        find_splits(data, "fr", "en")
    with pytest.raises(UserError, match="nowhere.*--destdir"):
        find_splits(data / "nowhere", "de", "en")


def test_splits_are_found_in_either_direction(data: Path) -> None:
    assert [split.name for split in find_splits(data, "de", "en")] == ["train", "valid", "valid1"]
    assert [split.name for split in find_splits(data, "en", "de")] == ["train", "valid", "valid1"]


def test_streams_that_two_versions_made_go_together() -> None:
    """A split may be added after an update of this package."""
    streams = ({"version": version, "options": 1} for version in ("0.1", "0.2"))
    assert side_stream_files.differing_fields(*streams) == []
