"""The command ``ctxgates preceding-sentences``, on documents that fit the data and on some that do not."""

from __future__ import annotations

import codecs
import gzip
import os
import signal
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import pytest
from fairseq.data.indexed_dataset import MMapIndexedDataset

import ctxgates
from fairseq_ctxgates.commands.preceding_sentences import main
from fairseq_ctxgates.data.side_stream_files import SideStreamWriter
from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize
from tests.helpers.files import contents

# Documents of three, one and two sentences; and one of two.
TRAIN = ["a b", "c", "d e f", "a", "b b", "c d"]
VALID = ["a a", "b"]
TRAIN_NAMES = ["x", "x", "x", "y", "z", "z"]
TRAIN_ROWS = [None, 0, 1, None, None, 4]
TRAIN_TEXT = ["a b", "c", "d e f", "", "a", "", "b b", "c d"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_data(tmp_path / "data", train=TRAIN, valid=VALID)


def make_data(folder: Path, **sources: Sequence[str]) -> Path:
    """A data directory of splits with these sources; each target is "t"."""
    return binarize(folder, {name: [(source, "t") for source in lines] for name, lines in sources.items()}, "de", "en")


def write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def run(data: Any, *options: Any) -> None:
    main([str(data), "--source-lang", "de", "--target-lang", "en", *map(str, options)])


def rows_of(folder: Path, split: str = "train", pair: str = "de-en") -> List[Optional[int]]:
    """What the stream says of each sentence: the row of the one before it, or None."""
    rows = [row.tolist() for row in MMapIndexedDataset(str(folder / f"{split}.preceding.{pair}"))]
    assert all(len(row) <= 1 for row in rows)
    return [row[0] if row else None for row in rows]


def reported(output: str) -> Dict[str, List[str]]:
    """The numbers printed for each stream: sentences, preceded, first, empty."""
    return {line.split()[0]: line.split()[1:] for line in output.splitlines() if ".preceding." in line}


# Documents that fit


def test_document_names(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(contents(data))
    train, valid = write(tmp_path / "train.docids", TRAIN_NAMES), write(tmp_path / "valid.docids", ["x", "x"])
    run(data, "--documents", f"train={train}", f"valid={valid}")
    assert rows_of(data) == TRAIN_ROWS
    assert rows_of(data, "valid") == [None, 0]
    written = {f"{split}.preceding.de-en.{end}" for split in ("train", "valid") for end in ("bin", "idx", "json")}
    assert set(contents(data)) - before == written

    printed = capsys.readouterr()
    assert reported(printed.out) == {
        f"{data}/train.preceding.de-en": ["6", "3", "3", "0"],
        f"{data}/valid.preceding.de-en": ["2", "1", "1", "0"],
    }
    assert "sentences   preceded      first      empty" in printed.out
    assert "first of their document" in printed.out
    assert printed.err == ""


def test_under_the_name_ctxgates(data: Path, tmp_path: Path) -> None:
    names = write(tmp_path / "train.docids", TRAIN_NAMES)
    ctxgates.main(["preceding-sentences", str(data), "--documents", f"train={names}"])
    assert rows_of(data) == TRAIN_ROWS


def test_compressed_document_names(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.docids.gz"
    path.write_bytes(gzip.compress("\n".join(TRAIN_NAMES).encode()))  # and no line feed at the end
    run(data, "--documents", f"train={path}")
    assert rows_of(data) == TRAIN_ROWS


def test_splits_that_are_not_named_get_no_stream(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(data, "--documents", f"train={write(tmp_path / 'train.docids', TRAIN_NAMES)}")
    assert not list(data.glob("valid.preceding.*"))
    assert f"{data}/valid: not named, no stream written" in capsys.readouterr().out
    run(data, "--one-document")
    run(data, "--documents", f"train={tmp_path / 'train.docids'}")
    assert f"{data}/valid: not named, its stream stays as it is" in capsys.readouterr().out
    assert list(data.glob("valid.preceding.*"))


@pytest.mark.parametrize("name", ["train.de", "train.de.gz"])
def test_blank_lines_that_are_no_rows(data: Path, tmp_path: Path, name: str) -> None:
    write(tmp_path / "train.de", TRAIN_TEXT)
    (tmp_path / "train.de.gz").write_bytes(gzip.compress((tmp_path / "train.de").read_bytes()))
    run(data, "--blank-line-separated", f"train={tmp_path / name}")
    assert rows_of(data) == TRAIN_ROWS


@pytest.mark.parametrize("blank", ["", " \t", "\u00a0", "\r"])
def test_blank_lines_that_are_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str], blank: str) -> None:
    """The row after an empty one starts a document, and the empty one has no predecessor."""
    data = make_data(tmp_path / "data", train=TRAIN_TEXT)
    text = write(tmp_path / "train.de", [line or blank for line in TRAIN_TEXT])
    run(data, "--blank-line-separated", f"train={text}")
    assert rows_of(data) == [None, 0, 1, None, None, None, None, 6]
    assert reported(capsys.readouterr().out) == {f"{data}/train.preceding.de-en": ["8", "3", "3", "2"]}


def test_a_text_without_a_blank_line_is_one_document_with_a_warning(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write(tmp_path / "train.de", [line for line in TRAIN_TEXT if line])
    run(data, "--blank-line-separated", f"train={text}")
    assert rows_of(data) == [None, *range(len(rows_of(data)) - 1)]
    assert capsys.readouterr().err == f"warning: {text} has no blank line: the whole text is taken for one document\n"


def test_several_blank_lines_in_a_row(data: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "train.de", ["", "a b", "c", "d e f", "", "", "a", "", "b b", "c d", "", ""])
    run(data, "--blank-line-separated", f"train={text}")
    assert rows_of(data) == TRAIN_ROWS


def test_one_document(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(data, "--one-document")
    assert rows_of(data) == [None, 0, 1, 2, 3, 4]
    assert rows_of(data, "valid") == [None, 0]
    assert "not named" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "documents", [("--one-document",), ("--documents", "train={path}")], ids=lambda options: options[0]
)
def test_an_empty_row_ends_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], documents: Tuple[str, ...]
) -> None:
    data = make_data(tmp_path / "data", train=["a", "b", "", "c", "d", ""])
    path = write(tmp_path / "train.docids", ["x"] * 6)
    run(data, *(option.format(path=path) for option in documents))
    assert rows_of(data) == [None, 0, None, None, 3, None]
    assert reported(capsys.readouterr().out) == {f"{data}/train.preceding.de-en": ["6", "2", "2", "2"]}


def test_a_split_of_single_sentences(tmp_path: Path) -> None:
    """Every row of the stream is empty: nothing to map into memory."""
    data = make_data(tmp_path / "data", train=TRAIN)
    run(data, "--documents", f"train={write(tmp_path / 'train.docids', list('uvwxyz'))}")
    assert rows_of(data) == [None] * 6


def test_several_data_directories(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_data(tmp_path / "other", train=["a", "b", "c"], train1=["a"])
    first, second = write(tmp_path / "1", TRAIN_NAMES), write(tmp_path / "2", ["x", "y", "y"])
    run(f"{data}:{other}", "--documents", f"train={first}:{second}")
    assert rows_of(data) == TRAIN_ROWS
    assert rows_of(other) == [None, None, 1]
    printed = capsys.readouterr().out
    assert set(reported(printed)) == {f"{folder}/train.preceding.de-en" for folder in (data, other)}
    assert f"{data}/valid: not named" in printed
    assert f"{other}/train1: not named" in printed


def test_only_the_first_data_directory_has_a_valid_split(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As fairseq reads it."""
    other = make_data(tmp_path / "other", train=["a", "b", "c"])
    first, second = write(tmp_path / "1", TRAIN_NAMES), write(tmp_path / "2", ["x", "y", "y"])
    valid = write(tmp_path / "valid.docids", ["x", "x"])
    run(f"{data}:{other}", "--documents", f"train={first}:{second}", f"valid={valid}")
    assert [rows_of(data), rows_of(data, "valid"), rows_of(other)] == [TRAIN_ROWS, [None, 0], [None, None, 1]]
    assert "not named" not in capsys.readouterr().out
    message = "--documents valid: 2 files for 1 data directories with this split"
    check_refused(f"{data}:{other}", data, message, "--documents", f"valid={valid}:{valid}")


def test_one_document_in_several_data_directories(data: Path, tmp_path: Path) -> None:
    other = make_data(tmp_path / "other", train=["a", "b", "c"], train1=["a"])
    run(f"{data}:{other}", "--one-document")
    assert rows_of(data, "valid") == [None, 0]
    assert rows_of(other) == [None, 0, 1]
    assert rows_of(other, "train1") == [None]


def test_documents_that_come_back(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "train.docids", ["x", "x", "y", "x", "z", "y"])
    run(data, "--documents", f"train={path}")
    assert rows_of(data) == [None, 0, None, None, None, None]
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: {path}: 2 document names occur in several places")
    assert "'x'" in warning
    assert "document order" in warning


def test_languages_are_found_and_either_direction_can_be_trained(data: Path, tmp_path: Path) -> None:
    names = write(tmp_path / "train.docids", TRAIN_NAMES)
    main([str(data), "--documents", f"train={names}"])
    assert rows_of(data) == TRAIN_ROWS
    # The other direction: targets are the sources, and none of them is empty.
    main([str(data), "-t", "de", "--documents", f"train={names}"])
    assert rows_of(data, pair="en-de") == TRAIN_ROWS


def test_the_empty_rows_are_those_of_the_source(tmp_path: Path) -> None:
    data = binarize(tmp_path / "data", {"train": [("a", "t"), ("", "t"), ("a", "")]}, "de", "en")
    run(data, "--one-document")
    assert rows_of(data) == [None, None, None]
    main([str(data), "-s", "en", "-t", "de", "--one-document"])
    assert rows_of(data, pair="en-de") == [None, 0, None]


# Documents that do not fit: a message, and nothing written. The file of the valid split is in order.


def check_refused(data: Any, folder: Path, message: str, *options: Any) -> None:
    before = contents(folder)
    with pytest.raises(UserError, match=message):
        run(data, *options)
    assert contents(folder) == before


def check_refused_text(data: Path, lines: Sequence[str], message: str) -> None:
    valid = write(data.parent / "valid.de", VALID)
    text = write(data.parent / "train.de", lines)
    check_refused(data, data, message, "--blank-line-separated", f"valid={valid}", f"train={text}")


def test_blank_lines_at_other_places_than_the_empty_rows(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", train=TRAIN_TEXT, valid=VALID)
    path = tmp_path / "train.de"
    check_refused_text(
        data,
        ["a b", "c", "", "d e f", "a", "", "b b", "c d"],
        rf"{path}, line 3: this line is blank either.*give the text",
    )


def test_blank_lines_in_place_of_sentences(data: Path) -> None:
    """As many lines as rows, two of them blank: this cannot be the text that was binarized."""
    check_refused_text(data, ["a b", "", "d e f", "", "b b", "c d"], "train.de, line 2: this line is blank either")


@pytest.mark.parametrize("files", [1, 3])
def test_another_number_of_files_than_of_data_directories(data: Path, tmp_path: Path, files: int) -> None:
    other = make_data(tmp_path / "other", train=TRAIN)
    path = write(tmp_path / "train.docids", TRAIN_NAMES)
    message = f"--documents train: {files} files for 2 data directories"
    check_refused(
        f"{data}:{other}", tmp_path / "other", message, "--documents", f"train={':'.join([str(path)] * files)}"
    )


@pytest.mark.parametrize("file", ["dict.de.txt", "train.de-en.de.bin"])
def test_damage_in_the_second_data_directory(data: Path, tmp_path: Path, file: str) -> None:
    """Everything is checked before anything is written, also in the first."""
    other = make_data(tmp_path / "other", train=TRAIN)
    (other / file).unlink()
    check_refused(f"{data}:{other}", data, f"other/{file} not found", "--one-document")


def test_no_such_directory_or_language(data: Path, tmp_path: Path) -> None:
    check_refused(f"{data}:{tmp_path / 'nowhere'}", data, "nowhere is not a directory.*--destdir", "--one-document")
    with pytest.raises(UserError, match="nowhere is not a directory.*--destdir"):
        main([str(tmp_path / "nowhere"), "--one-document"])
    with pytest.raises(UserError, match="no data of the language pair de-fr.*--target-lang"):
        main([str(data), "-s", "de", "-t", "fr", "--one-document"])


def test_a_byte_order_mark_does_not_begin_a_document(data: Path, tmp_path: Path) -> None:
    names = write(tmp_path / "train.docids", TRAIN_NAMES)
    run(data, "--documents", f"train={names}")
    expected = contents(data)
    names.write_bytes(codecs.BOM_UTF8 + names.read_bytes())
    run(data, "--documents", f"train={names}")
    assert contents(data) == expected


# Interrupted writing


@pytest.mark.parametrize("stop", ["kill", "full disk"])
def test_interrupted_writing_leaves_the_old_stream(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    run(data, "--documents", f"train={write(tmp_path / 'train.docids', TRAIN_NAMES)}")
    before = contents(data)

    def add_all(writer: SideStreamWriter, elements: np.ndarray, sizes: np.ndarray) -> None:
        if stop == "full disk":
            raise OSError(28, "No space left on device")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SideStreamWriter, "add_all", add_all)
    with pytest.raises(UserError if stop == "full disk" else SystemExit) as error:
        run(data, "--one-document")
    if stop == "full disk":
        assert str(error.value) == "No space left on device; incomplete output files were removed"
    assert contents(data) == before
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
