"""The command ``ctxgates gate-labels``, on data directories that are in order and on some that are not."""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Set

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset

import fairseq_ctxgates
from fairseq_ctxgates.commands.gate_labels import get_parser, main, memory_size
from fairseq_ctxgates.context_gates.gate_labels import IGNORE, GateLabels
from fairseq_ctxgates.context_gates.pmi import counting, labelling
from fairseq_ctxgates.context_gates.pmi.labelling import load_labeller
from fairseq_ctxgates.context_gates.pmi.table import PMIOptions
from fairseq_ctxgates.data.data_directory import find_splits
from fairseq_ctxgates.data.side_stream_files import SideStreamWriter
from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize, write_split
from tests.helpers.files import contents
from tests.helpers.pmi import LABELS, PAIRS, BruteForce, random_pairs

SCRIPT = Path(fairseq_ctxgates.__file__).parent.parent / "preprocess" / "gate_labels.py"


def run(data: Any, *options: str) -> None:
    main([str(data), "--source-lang", "de", "--target-lang", "en", *options])


def labels_of(folder: Path, split: str = "train", pair: str = "de-en") -> List[List[int]]:
    return [row.tolist() for row in MMapIndexedDataset(str(folder / f"{split}.gate.{pair}"))]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return binarize(tmp_path / "data", {"train": PAIRS, "valid": PAIRS[3:], "valid1": PAIRS[:1]}, "de", "en")


def test_labels_every_split_and_keeps_the_tables(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(contents(data))
    run(data)
    assert [labels_of(data, split) for split in ("train", "valid", "valid1")] == [LABELS, LABELS[3:], LABELS[:1]]
    streams = {f"{split}.gate.de-en.{end}" for split in ("train", "valid", "valid1") for end in ("bin", "idx", "json")}
    assert set(contents(data)) - before == streams | {"pmi.bilingual.de-en.npz", "pmi.monolingual.de-en.npz"}
    assert len(GateLabels.load_split(find_splits(data, "de", "en")[0])) == len(PAIRS)  # fingerprint and all
    assert load_labeller(data, "de", "en").options == PMIOptions()

    printed = capsys.readouterr()
    assert "bilingual table: 8 distinct pairs, 16 counted" in printed.out
    assert "monolingual table: 4 distinct pairs, 6 counted" in printed.out
    shares = {line.split()[0]: line.split()[1:] for line in printed.out.splitlines() if ".gate." in line}
    assert shares[f"{data}/train.gate.de-en"] == ["10", "90.0%", "10.0%", "0.0%"]
    assert "pairs/s" in printed.err
    assert "tokens/s" in printed.err


def test_prints_the_pairs_with_the_highest_pmi(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [("ein hund", "a dog"), ("ein tier", "an animal")] * 10
    run(binarize(tmp_path, {"train": pairs}, "de", "en"))
    bilingual, monolingual = capsys.readouterr().out.split("monolingual table")
    # Z = 80: animal with tier is in 10, each of the two words in 20 pairs: log(80 x 10 / (20 x 20)) = 0.69.
    assert "  0.69       10 x  animal ~ tier\n" in bilingual
    assert "10 x  dog after a\n" in monolingual


def test_options_are_kept_with_the_labels(data: Path) -> None:
    run(data, "--counts", "frequency", "--strategy", "mean", "--measure", "npmi", "--min-count", "2")
    options: Dict[str, Any] = {"counts": "frequency", "strategy": "mean", "measure": "npmi", "min_count": 2}
    assert json.loads((data / "valid.gate.de-en.json").read_text())["options"] == options
    assert load_labeller(data, "de", "en").options == PMIOptions(**options)
    assert labels_of(data) == BruteForce(PAIRS, PMIOptions(**options)).labels(PAIRS)


def test_languages_are_found_and_either_direction_can_be_trained(data: Path) -> None:
    assert data_utils.infer_language_pair(str(data)) == ["de", "en"]
    main([str(data)])
    assert labels_of(data) == LABELS
    main([str(data), "-t", "de"])
    assert data_utils.infer_language_pair(str(data)) == ["de", "en"]
    swapped = [(target, source) for source, target in PAIRS]
    assert labels_of(data, "valid1", "en-de") == BruteForce(swapped, PMIOptions()).labels(swapped[:1])
    assert labels_of(data) == LABELS


@pytest.mark.process
def test_one_process_and_two_and_little_memory_give_the_same_bytes(tmp_path: Path) -> None:
    splits = {"train": random_pairs(300, seed=4), "valid": random_pairs(30, seed=5)}
    found = []
    for number, options in enumerate(([], ["--workers", "2", "--memory", "4K"], ["--memory", "1K"])):
        folder = binarize(tmp_path / str(number), splits, "de", "en")
        run(folder, *options)
        found.append(contents(folder))
    assert found[0] == found[1] == found[2]


def test_several_data_directories_share_one_table(tmp_path: Path) -> None:
    pairs = random_pairs(200, seed=6)
    whole = binarize(tmp_path / "whole", {"train": pairs}, "de", "en")
    parts = [tmp_path / "a", tmp_path / "b"]
    for folder, splits in zip(parts, ({"train": pairs[:90], "train1": pairs[90:120]}, {"train": pairs[120:]})):
        shutil.copytree(whole, folder)
        binarize_like(whole, folder, splits)
    run(whole)
    run(f"{parts[0]}:{parts[1]}")
    assert labels_of(parts[0]) + labels_of(parts[0], "train1") + labels_of(parts[1]) == labels_of(whole)
    assert not list(parts[1].glob("pmi.*"))
    assert len(load_labeller(parts[0], "de", "en").bilingual.metadata["train"]["train"]) == 2


def test_what_is_counted_is_what_fairseq_trains_on(tmp_path: Path) -> None:
    """The split and its continuations up to the first that is missing."""
    pairs = random_pairs(90, seed=8, types=8)
    splits = {"train": pairs[:30], "train2": pairs[30:60], "valid": pairs[60:75], "valid1": pairs[75:]}
    folder = binarize(tmp_path, splits, "de", "en")
    run(folder)
    assert labels_of(folder, "valid") == BruteForce(pairs[:30], PMIOptions()).labels(pairs[60:75])
    run(folder, "--train-subset", "valid")
    assert labels_of(folder) == BruteForce(pairs[60:], PMIOptions()).labels(pairs[:30])


def binarize_like(model: Path, folder: Path, splits: Dict) -> None:
    """Binarize with the dictionaries of another directory."""
    for side, lang in enumerate(("de", "en")):
        words = Dictionary.load(str(model / f"dict.{lang}.txt"))
        for name, pairs in splits.items():
            write_split(folder / f"{name}.de-en.{lang}", [pair[side] for pair in pairs], words)


def remove_target(data: Path, split: str) -> None:
    """Leave what ``fairseq-preprocess --only-source`` leaves."""
    for path in data.glob(f"{split}.de-en.en.*"):
        path.unlink()


def test_a_test_set_without_a_target_gets_no_labels(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remove_target(data, "valid1")
    run(data)
    assert [labels_of(data, split) for split in ("train", "valid")] == [LABELS, LABELS[3:]]
    assert not list(data.glob("valid1.gate.*"))
    assert capsys.readouterr().out.endswith(f"\n{data}/valid1: no target, no stream written\n")
    assert load_labeller(data, "de", "en").options == PMIOptions()


def missing_target(data: Path) -> None:
    remove_target(data, "train")
    (data / "dict.en.txt").unlink()  # --only-source writes none


def missing_dictionary(data: Path) -> None:
    (data / "dict.de.txt").unlink()


def different_lengths(data: Path) -> None:
    other = binarize(data.parent / "other", {"valid": PAIRS}, "de", "en")
    for end in ("bin", "idx"):
        shutil.copy(other / f"valid.de-en.en.{end}", data)


def truncated(data: Path) -> None:
    path = data / "train.de-en.en.bin"
    path.write_bytes(path.read_bytes()[:-2])


def empty_split(data: Path) -> None:
    binarize(data.parent / "other", {"train": PAIRS, "valid1": []}, "de", "en")
    for path in (data.parent / "other").glob("valid1.*"):
        shutil.copy(path, data)


def one_side_only(data: Path) -> None:
    (data / "valid.de-en.en.idx").unlink()


def smaller_dictionary(data: Path) -> None:
    path = data / "dict.en.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def no_training_split(data: Path) -> None:
    for path in data.glob("train.*"):
        path.unlink()


@pytest.mark.parametrize(
    "damage, message",
    [
        (missing_dictionary, r"dict\.de\.txt not found"),
        (different_lengths, r"valid\.de-en\.de\.bin has 2 sentences, .*valid\.de-en\.en\.bin has 5"),
        (truncated, r"train\.de-en\.en\.bin is truncated"),
        (empty_split, r"valid1\.de-en\.de\.bin (is empty|holds no sentence)"),
        (missing_target, "train has no target .*--only-source"),
        (one_side_only, r"valid\.de-en\.en\.idx not found"),
        (smaller_dictionary, r"train\.de-en\.en\.bin holds the token id 6, but .*dict\.en\.txt has 6 types"),
        (no_training_split, r"has no split 'train'.*--train-subset"),
    ],
)
def test_bad_data_is_named_and_nothing_is_written(data: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(data)
    before = contents(data)
    with pytest.raises(UserError, match=message):
        run(data)
    assert contents(data) == before


def test_a_language_pair_or_directory_that_does_not_exist(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no data of the language pair de-fr"):
        main([str(data), "-s", "de", "-t", "fr"])
    with pytest.raises(UserError, match="nowhere is not a directory"):
        main([str(tmp_path / "nowhere")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no data of any language pair"):
        main([str(tmp_path / "empty")])


@pytest.mark.parametrize("lang", ["de", "en"])
def test_data_directories_with_different_dictionaries(data: Path, tmp_path: Path, lang: str) -> None:
    other = Path(shutil.copytree(data, tmp_path / "other"))
    with open(other / f"dict.{lang}.txt", "a") as file:
        file.write("new 1\n")
    with pytest.raises(UserError, match=rf"other/dict\.{lang}\.txt differs from .*--srcdict"):
        run(f"{data}:{other}")


def names(folder: Path) -> Set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("where", ["count_block", "save_table"])
def test_a_terminated_run_leaves_nothing_behind(data: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    before = names(data)
    monkeypatch.setattr(counting, where, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as stop:
        run(data)
    assert stop.value.code == 128 + signal.SIGTERM
    assert names(data) == before
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.process
def test_full_disk(tmp_path: Path) -> None:
    """Run as a script in a clone, with files limited to 64 kB: says so in one line and removes what it wrote."""
    folder = binarize(tmp_path, {"train": random_pairs(2000, seed=7, types=400)}, "de", "en")
    before = contents(folder)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-B", str(SCRIPT), str(folder)],  # Python's caches would be cut as well
        env=environment,
        cwd=str(tmp_path),
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)),
    )
    assert done.returncode == 1
    last_line = done.stderr.decode().splitlines()[-1]
    assert last_line.startswith("error: ")
    assert last_line.endswith("incomplete output files were removed")
    assert contents(folder) == before


def test_sizes_and_numbers() -> None:
    assert [memory_size(text) for text in ("4G", "1.5k", "2000", "2MiB")] == [4 << 30, 1536, 2000, 2 << 20]
    assert get_parser().parse_args(["data"]).memory == 4 << 30
    for options in (
        ["--workers", "+5"],
        ["--workers", "1_0"],
        ["--memory", "much"],
        ["--memory", "0"],
        ["--workers", "0"],
        ["--min-count", "-1"],
    ):
        with pytest.raises(SystemExit):
            get_parser().parse_args(["data", *options])


def test_sentences_without_words_have_labels_too(tmp_path: Path) -> None:
    folder = binarize(tmp_path, {"train": [*PAIRS, ("", ""), ("a", ""), ("", "x")], "valid": [("", "")]}, "de", "en")
    run(folder)
    assert labels_of(folder)[5:] == [[IGNORE], [IGNORE], [IGNORE, IGNORE]]
    assert labels_of(folder, "valid") == [[IGNORE]]


def test_data_without_a_single_pair(tmp_path: Path) -> None:
    folder = binarize(tmp_path, {"train": [("a", ""), ("", "x")]}, "de", "en")
    run(folder)
    assert labels_of(folder) == [[IGNORE], [IGNORE, IGNORE]]
    assert len(load_labeller(folder, "de", "en").bilingual) == 0


def test_a_full_disk_ends_the_labelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """What is left is not labelled, and nothing stays: no table, no scratch folder, no open file."""
    data = binarize(tmp_path, {"train": random_pairs(300, seed=1)}, "de", "en")
    before, labelled, label_block = set(contents(data)), set(), labelling.label_block

    def label_and_note(block: labelling.LabellingBlock) -> int:
        labelled.add(block.sentences)
        return label_block(block)

    def add_all(writer: SideStreamWriter, elements: np.ndarray, sizes: np.ndarray) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(labelling, "label_block", label_and_note)
    monkeypatch.setattr(SideStreamWriter, "add_all", add_all)
    with pytest.raises(UserError, match="No space left on device"):
        run(data, "--memory", "20K")
    assert set(contents(data)) == before
    assert len(labelled) == 1, "of several sections the first"
    gc.collect()
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]
