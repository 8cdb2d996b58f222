"""Streams and data whose bytes were changed: each is refused by name, before anything is done with it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_ctxgates.commands import gate_labels
from fairseq_ctxgates.context_gates.gate_labels import GateLabels
from fairseq_ctxgates.data.data_directory import Split, find_splits
from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import make_pairs, write_gate_labels

FLIPS = 2000 if os.environ.get("RELIABILITY") == "full" else 150


@pytest.fixture
def train(tmp_path: Path) -> Split:
    """A split with gate labels."""
    data = binarize(tmp_path / "data", {"train": make_pairs(40, seed=1)}, "de", "en")
    write_gate_labels(data)
    return find_splits(data, "de", "en")[0]


def refuses(train: Split, name: str) -> bool:
    """Whether the stream is refused with a message that names the file."""
    try:
        GateLabels._load_split(train)
    except UserError as error:
        assert name in str(error) and "run: ctxgates gate-labels" in str(error)
        return True
    return False


@pytest.mark.parametrize("extension", ["bin", "idx", "json"])
def test_a_flipped_bit_or_a_cut(train: Split, extension: str) -> None:
    path = Path(f"{train.stream_prefix('gate')}.{extension}")
    content = path.read_bytes()
    assert not refuses(train, "")
    generator = random.Random(1)
    for _ in range(FLIPS):
        changed = bytearray(content)
        place = generator.randrange(len(content))
        changed[place] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)
        is_harmless = extension == "json" and _is_same_object(bytes(changed), content)
        assert refuses(train, "train.gate.de-en") is not is_harmless, f"bit flipped in byte {place}"
        path.write_bytes(content[:place])
        is_harmless = extension == "json" and _is_same_object(content[:place], content)
        assert refuses(train, "train.gate.de-en") is not is_harmless, f"cut to {place} bytes"
    path.write_bytes(content + b"\0")
    assert refuses(train, "train.gate.de-en")


def _is_same_object(text: bytes, expected: bytes) -> bool:
    """Whether a change is one of white space only."""
    try:
        return bool(json.loads(text) == json.loads(expected))
    except ValueError:
        return False


@pytest.mark.parametrize("content", ["[]", '"x"', "3", "null", "{"])
def test_a_json_file_that_holds_no_object(train: Split, content: str) -> None:
    Path(f"{train.stream_prefix('gate')}.json").write_text(content)
    assert refuses(train, "train.gate.de-en.json")


def test_data_that_are_longer_than_their_index_says(train: Split) -> None:
    path = train.data_dir / "train.de-en.en.bin"
    path.write_bytes(path.read_bytes() + bytes(8))
    with pytest.raises(UserError, match=r"train\.de-en\.en\.bin is longer than its index says"):
        train.load_language("en")


def test_an_index_whose_rows_are_swapped(train: Split) -> None:
    path = train.data_dir / "train.de-en.en.idx"
    content = bytearray(path.read_bytes())
    pointers = len(content) - 8 * len(train.load_language("en"))  # the last part of the file
    content[pointers : pointers + 16] = content[pointers + 8 : pointers + 16] + content[pointers : pointers + 8]
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"train\.de-en\.en\.idx is damaged"):
        train.load_language("en")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"word\n", "expected '<token> <cnt>"),
        (b"word many\n", "expected '<token> <cnt>"),
        (b"word 3\nword 4\n", "Duplicate word"),
        (b"w\xfcrd 3\n", "Incorrect encoding"),
    ],
)
def test_a_damaged_dictionary(train: Split, line: bytes, problem: str) -> None:
    path = train.dictionary_path("en")
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(UserError, match=rf"(?s)dict\.en\.txt is damaged \(.*{problem}.*fairseq-preprocess"):
        gate_labels.main([str(train.data_dir), "-s", "de", "-t", "en"])


@pytest.mark.process
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_words_that_standard_output_cannot_encode(tmp_path: Path, encoding: str) -> None:
    """The report of a command, at its end, has words of the data."""
    data = binarize(tmp_path / "data", {"train": [("зима", "冬")] * 12}, "de", "en")
    done = subprocess.run(
        [sys.executable, "-m", "ctxgates", "gate-labels", str(data), "-s", "de", "-t", "en"],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"\\u51ac ~ \\u0437" in done.stdout
    assert (data / "train.gate.de-en.json").exists()
