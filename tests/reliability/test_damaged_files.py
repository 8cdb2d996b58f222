"""Streams and data whose bytes were changed: each is refused by name, before anything is done with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict

import pytest

from fairseq_ctxgates.commands import preceding_sentences
from fairseq_ctxgates.context_gates.gate_labels import GateLabels
from fairseq_ctxgates.data.data_directory import Split, find_splits
from fairseq_ctxgates.data.side_stream import SideStream
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_sentences import PrecedingSentences
from fairseq_ctxgates.relations.mask import pack_tuples
from fairseq_ctxgates.relations.stream import Relations
from tests.helpers.corpus import binarize
from tests.helpers.damage import CHANGES, flips_and_cuts
from tests.helpers.fairseq_commands import make_pairs, write_gate_labels, write_relations

STREAMS: Dict[str, type[SideStream]] = {stream.name: stream for stream in (GateLabels, PrecedingSentences, Relations)}


@pytest.fixture
def train(tmp_path: Path) -> Split:
    """A split with every stream."""
    data = binarize(tmp_path / "data", {"train": make_pairs(40, seed=1)}, "de", "en")
    write_gate_labels(data)
    preceding_sentences.main([str(data), "-s", "de", "-t", "en", "--one-document"])
    (train,) = find_splits(data, "de", "en")
    words = [len(row) - 1 for row in train.load_language("de")]
    write_relations(data, "train", [pack_tuples([range(number)]) for number in words])
    return train


def refuses(train: Split, name: str, stream: type[SideStream] = GateLabels) -> bool:
    """Whether the stream is refused with a message that names the file."""
    try:
        stream.load_split(train)
    except UserError as error:
        assert name in str(error) and f"run: {stream.made_by.partition(' {')[0]}" in str(error)
        return True
    return False


@pytest.mark.parametrize("extension", ["bin", "idx", "json"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_flipped_bit_or_a_cut(train: Split, name: str, extension: str) -> None:
    stream, named = STREAMS[name], f"train.{name}.de-en"
    path = Path(f"{train.stream_prefix(name)}.{extension}")
    content = path.read_bytes()
    assert not refuses(train, "", stream)
    harmless = 0
    for changed in flips_and_cuts(content, CHANGES):
        path.write_bytes(changed)
        is_harmless = extension == "json" and _is_same_object(changed, content)
        assert refuses(train, named, stream) is not is_harmless
        harmless += is_harmless
    path.write_bytes(content + b"\0")
    assert refuses(train, named, stream)
    print(f"{path.name}: {CHANGES - harmless} of {CHANGES} refused, {harmless} of white space alone")


def _is_same_object(text: bytes, expected: bytes) -> bool:
    """Whether a change is one of white space only."""
    try:
        return bool(json.loads(text) == json.loads(expected))
    except ValueError:
        return False


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
