"""Tables and texts that compiled code reads without checks are checked when they are loaded."""

from __future__ import annotations

import json
import re
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import numpy as np
import pytest
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from fairseq_ctxgates.commands.gate_labels import main as label
from fairseq_ctxgates.context_gates.gate_labels import GateLabels
from fairseq_ctxgates.context_gates.pmi.counting import TABLE_NAMES
from fairseq_ctxgates.context_gates.pmi.labelling import load_labeller
from fairseq_ctxgates.context_gates.pmi.table import PMITable, StoredArray, map_npz, table_path, write_npz
from fairseq_ctxgates.data.data_directory import find_splits, load_rows
from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize
from tests.helpers.damage import CHANGES, flips_and_cuts
from tests.helpers.pmi import PAIRS, random_pairs

Arrays = Dict[str, np.ndarray]
BILINGUAL = "pmi.bilingual.de-en.npz"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = binarize(tmp_path_factory.mktemp("tables"), {"train": random_pairs(60, seed=1)}, "de", "en")
    label([str(folder), "-s", "de", "-t", "en"])
    return folder


def copy_of(arrays: Arrays) -> Arrays:
    return {name: np.array(array) for name, array in arrays.items()}


def write(path: Path, arrays: Arrays) -> None:
    """With right checksums."""
    write_npz(path, {name: StoredArray.from_array(array) for name, array in arrays.items()})


def check_is_refused(path: Path, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        PMITable.load(path)
    assert str(refusal.value).startswith(f"{path} is damaged (")
    assert message in str(refusal.value)
    assert str(refusal.value).endswith("; run: ctxgates gate-labels")


def setting(name: str, place: Any, value: Any) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name][place] = value

    return change


def replacing(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name] = function(arrays[name])

    return change


def wrap_around(arrays: Arrays) -> None:
    """Rows whose lengths are all above 0, because the differences of such numbers overflow."""
    end = arrays["row_start"][-1]
    quarter = 1 << 62
    wrapped = [0, quarter, 2 * quarter - 1, -2 * quarter, -quarter, 0]
    assert np.all(np.diff(np.array(wrapped)) > 0)
    arrays["row_start"][: len(wrapped)] = wrapped
    arrays["row_start"][len(wrapped) :] = end


# What is wrong with a table, and what is said.
DAMAGES: Dict[str, Tuple[Callable[[Arrays], None], str]] = {
    "a row that begins far away": (setting("row_start", 5, 1 << 40), "row_start does not divide"),
    "a row that begins below zero": (setting("row_start", 5, -(1 << 40)), "row_start does not divide"),
    "rows that do not begin at zero": (setting("row_start", 0, 1), "row_start does not divide"),
    "rows that end too late": (setting("row_start", -1, 1 << 40), "row_start does not divide"),
    "rows whose lengths overflow": (wrap_around, "row_start does not divide"),
    "a row less": (replacing("row_start", lambda array: np.delete(array, 3)), "numbers for"),
    "no rows": (replacing("row_start", lambda array: array[:0]), "numbers for"),
    "a column too far": (
        replacing("columns", lambda array: np.full_like(array, 60000)),
        "columns has 60000 to 60000 of",
    ),
    "one column too far": (setting("columns", -1, 60000), "to 60000 of"),
    "a column below zero": (
        replacing("columns", lambda array: np.full(array.shape, -1, np.int32)),
        "columns has -1 to",
    ),
    "fewer columns": (replacing("columns", lambda array: array[:-1]), "pair_counts"),
    "fewer counts": (replacing("pair_counts", lambda array: array[:-1]), "pair_counts"),
    "a pair without a count": (setting("pair_counts", 0, 0), "a pair has no pair_counts"),
    "a column without a count": (
        replacing("column_counts", np.zeros_like),
        "a pair has no pair_counts or column_counts",
    ),
    "a row without a count": (replacing("row_counts", np.zeros_like), "a row with pairs has no row_counts"),
    "no total": (replacing("total", lambda array: array[:0]), "total has 0 numbers"),
    "two totals": (replacing("total", lambda array: np.repeat(array, 2)), "total has 2 numbers"),
    "rows of another type": (
        replacing("row_start", lambda array: array.astype(np.int32)),
        "row_start is an array of int32",
    ),
    "fractions": (replacing("columns", lambda array: array.astype(np.float32)), "columns is an array of float32"),
    "another byte order": (replacing("total", lambda array: array.astype(">i8")), "total is an array of >i8"),
    "metadata that are no JSON": (setting("metadata", 0, 0), ""),
    "metadata that are a list": (replacing("metadata", lambda _: np.frombuffer(b"[]", np.uint8)), "metadata"),
    "metadata without data": (replacing("metadata", lambda _: np.frombuffer(b'{"options": {}}', np.uint8)), "metadata"),
    "an array more": (lambda arrays: arrays.update(more=np.zeros(1, np.int64)), "it holds"),
    "an array less": (lambda arrays: arrays.__delitem__("columns"), "it holds"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_table_that_is_none(
    change: Callable[[Arrays], None], message: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the last pair is looked at apart from the first.
    monkeypatch.setattr("fairseq_ctxgates.context_gates.pmi.table.PAIRS_READ_AT_ONCE", 7)
    path = tmp_path / BILINGUAL
    arrays = copy_of(map_npz(data / BILINGUAL, verify=True))
    write(path, arrays)
    PMITable.load(path)
    change(arrays)
    write(path, arrays)
    check_is_refused(path, message)


@pytest.mark.parametrize("name", TABLE_NAMES)
def test_a_flipped_bit_or_a_cut(name: str, data: Path, tmp_path: Path) -> None:
    """Each is refused, or in a part of the file that holds nothing of the table."""
    path = table_path(tmp_path, name, "de", "en")
    content = table_path(data, name, "de", "en").read_bytes()
    path.write_bytes(content)
    expected = copy_of(map_npz(path, verify=True))
    harmless = 0
    for changed in flips_and_cuts(content, CHANGES):
        path.unlink()  # it may be memory-mapped
        path.write_bytes(changed)
        try:
            PMITable.load(path)
        except UserError as error:
            assert str(error).startswith(f"{path} ") and "ctxgates gate-labels" in str(error)
            continue
        found = map_npz(path, verify=True)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], array) for key, array in expected.items())
        harmless += 1
    print(f"{path.name}: {CHANGES - harmless} of {CHANGES} refused, {harmless} of nothing in the table")


@pytest.mark.parametrize(
    "header",
    [
        {"descr": "|O", "fortran_order": False, "shape": (1,)},
        {"descr": "<i8", "fortran_order": False, "shape": ()},
        {"descr": "<i8", "fortran_order": False, "shape": (1, 1)},
        {"descr": "<i8", "fortran_order": False, "shape": (1 << 40,)},
        {"descr": "<i8", "fortran_order": False, "shape": (-1,)},
        {"descr": [("a", "|O")], "fortran_order": False, "shape": (1,)},
    ],
)
def test_an_array_whose_header_does_not_fit(header: Dict[str, Any], data: Path, tmp_path: Path) -> None:
    """As one of pointers, or one that is longer than the file."""
    path = tmp_path / BILINGUAL
    with zipfile.ZipFile(data / BILINGUAL) as archive, zipfile.ZipFile(path, "w") as changed:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "total.npy":
                text = repr(header).encode()
                content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(8)
            changed.writestr(name, content)
    check_is_refused(path, "total")


def test_tables_of_fewer_types_than_the_dictionaries_have(data: Path, tmp_path: Path) -> None:
    """The token ids of a text are then no rows or columns of them."""
    folder = Path(shutil.copytree(data, tmp_path / "data"))
    smaller = binarize(tmp_path / "smaller", {"train": PAIRS}, "de", "en")
    label([str(smaller), "-s", "de", "-t", "en"])
    load_labeller(folder, "de", "en")
    for name in TABLE_NAMES:
        arrays = copy_of(map_npz(table_path(smaller, name, "de", "en"), verify=True))
        arrays["metadata"] = map_npz(table_path(data, name, "de", "en"), verify=True)["metadata"]
        write(table_path(folder, name, "de", "en"), arrays)
    with pytest.raises(UserError, match=r"pmi.bilingual.de-en.npz is damaged \(it has .*; run: ctxgates gate-labels"):
        load_labeller(folder, "de", "en")


def test_tables_of_other_data_are_named_with_the_whole_remedy(data: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data, tmp_path / "data"))
    binarize(folder, {"train": PAIRS}, "de", "en")
    message = f"{folder}/pmi.{{bilingual,monolingual}}.de-en.npz were made with other dictionaries than {folder} holds;"
    with pytest.raises(UserError, match=re.escape(f"{message} run: ctxgates gate-labels {folder} -s de -t en")):
        load_labeller(folder, "de", "en")


@pytest.mark.parametrize("field", ["options", "dictionaries", "train"])
def test_tables_that_labels_were_not_made_with(data: Path, tmp_path: Path, field: str) -> None:
    folder = Path(shutil.copytree(data, tmp_path / "data"))
    load_labeller(folder, "de", "en")
    *_, split = find_splits(folder, "de", "en")
    path = Path(f"{split.stream_prefix(GateLabels.name)}.json")
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, field: {}}))
    with pytest.raises(UserError, match="are not those that .* was made with; run: ctxgates gate-labels"):
        load_labeller(folder, "de", "en")


def test_a_text_with_a_token_id_below_zero(tmp_path: Path) -> None:
    folder = binarize(tmp_path, {"train": PAIRS}, "de", "en")
    path = folder / "train.de-en.en.bin"
    (split,) = find_splits(folder, "de", "en")
    rows = [row.clone() for row in split.load_language("en")]
    rows[0][0] = -(1 << 30)
    writer = MMapIndexedDatasetBuilder(str(path), dtype=np.int32)
    for row in rows:
        writer.add_item(row)
    writer.finalize(str(path.with_suffix(".idx")))
    with pytest.raises(UserError, match=r"train.de-en.en.bin holds the token id -1073741824, but .* has \d+ types"):
        label([str(folder), "-s", "de", "-t", "en"])


@pytest.mark.parametrize("lengths", [(-4, 4), (1 << 30, -(1 << 30))])
def test_a_text_with_a_length_below_zero(lengths: Tuple[int, int], tmp_path: Path) -> None:
    folder = binarize(tmp_path, {"train": PAIRS}, "de", "en")
    path = folder / "train.de-en.en.idx"
    content = bytearray(path.read_bytes())
    header = 9 + 8 + 1 + 8  # magic number, version, type, rows
    content[header : header + 8] = struct.pack("<ii", *lengths)
    path.write_bytes(content)
    for load in (load_rows, lambda prefix: label([str(folder), "-s", "de", "-t", "en"])):
        with pytest.raises(UserError, match="train.de-en.en.idx is damaged"):
            load(folder / "train.de-en.en")


def test_a_table_in_the_place_of_the_other_is_refused(tmp_path: Path) -> None:
    """Also with a joined dictionary, where both have the same types."""
    data = binarize(tmp_path, {"train": random_pairs(60, seed=1)}, "de", "en", joined=True)
    label([str(data), "-s", "de", "-t", "en"])
    bilingual, monolingual = (table_path(data, name, "de", "en") for name in TABLE_NAMES)
    shutil.copy(bilingual, monolingual)
    check_is_refused(monolingual, "it is another table under this name")
