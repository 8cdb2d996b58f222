"""A side stream that is not as it was written is not loaded."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List, Type

import numpy as np
import pytest

from fairseq_ctxgates.commands.preceding_sentences import main as write_preceding_sentences
from fairseq_ctxgates.context_gates.gate_labels import GateLabels
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.data.side_stream import SideStream, read_metadata
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_sentences import PrecedingSentences
from fairseq_ctxgates.relations.stream import Relations, pack_tuples
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import make_pairs, write_gate_labels, write_relations

STREAMS: List[Type[SideStream[Any]]] = [GateLabels, PrecedingSentences, Relations]
FLIPS = 400


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a stream of each kind. Not to be changed."""
    pairs = make_pairs(60, 1)
    folder = binarize(tmp_path_factory.mktemp("streams"), {"train": pairs}, "de", "en")
    write_gate_labels(folder, ["train"])
    write_preceding_sentences([str(folder), "-s", "de", "-t", "en", "--one-document"])
    write_relations(folder, "train", [pack_tuples([[0]] * (number % 3)) for number in range(len(pairs))])
    return folder


@pytest.fixture
def split(written: Path, tmp_path: Path) -> Split:
    """A copy of the same that may be changed."""
    return Split(Path(shutil.copytree(written, tmp_path / "data")), "train", "de", "en")


def files(split: Split, stream: Type[SideStream[Any]]) -> List[Path]:
    return [Path(f"{split.stream_prefix(stream.name)}.{extension}") for extension in ("bin", "idx", "json")]


def rows(split: Split, stream: Type[SideStream[Any]]) -> List[List[int]]:
    return [row.tolist() for row in stream._load_split(split)]


@pytest.mark.parametrize("stream", STREAMS)
def test_flipped_bits(stream: Type[SideStream[Any]], split: Split) -> None:
    """A flipped bit is found wherever it is, but for one that makes white space of white space in the JSON file."""
    rng = random.Random(1)
    whole = rows(split, stream)
    metadata = read_metadata(split.stream_prefix(stream.name))
    for path in files(split, stream):
        content = path.read_bytes()
        for place in rng.sample(range(8 * len(content)), min(FLIPS, 8 * len(content))):
            flipped = bytearray(content)
            flipped[place // 8] ^= 1 << place % 8
            path.write_bytes(flipped)
            try:
                assert rows(split, stream) == whole
                assert read_metadata(split.stream_prefix(stream.name)) == metadata
                assert path.suffix == ".json" and bytes([flipped[place // 8], content[place // 8]]).isspace()
            except UserError as error:
                assert str(path.with_suffix("")) in str(error)
                assert "; run: ctxgates " in str(error)
        path.write_bytes(content)
    assert rows(split, stream) == whole


CUTS: Dict[str, Callable[[bytes], bytes]] = {
    "the last byte is gone": lambda content: content[:-1],
    "half is gone": lambda content: content[: len(content) // 2],
    "all is gone": lambda content: b"",
    "a byte more": lambda content: content + b"\0",
    "twice": lambda content: content + content,
    "the first byte is gone": lambda content: content[1:],
    "zeros in its place": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("extension", ["bin", "idx", "json"])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("stream", STREAMS)
def test_cuts(stream: Type[SideStream[Any]], cut: Callable[[bytes], bytes], extension: str, split: Split) -> None:
    path = Path(f"{split.stream_prefix(stream.name)}.{extension}")
    content = path.read_bytes()
    path.write_bytes(cut(content.rstrip() if extension == "json" else content))  # the end of a line says nothing
    with pytest.raises(UserError, match=r"; run: ctxgates ") as refusal:
        rows(split, stream)
    assert f"{split.stream_prefix(stream.name)}." in str(refusal.value)


def test_a_file_that_is_missing(split: Split) -> None:
    for path in files(split, GateLabels):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(UserError, match=rf"{path.name}.*; run: ctxgates gate-labels"):
            rows(split, GateLabels)
        path.write_bytes(content)
    assert rows(split, GateLabels)


def test_a_stream_of_an_earlier_version(split: Split) -> None:
    """Which wrote no digest."""
    path = files(split, GateLabels)[-1]
    metadata = json.loads(path.read_text(encoding="utf-8"))
    for missing in ("digest", "bytes"):
        earlier = {name: value for name, value in metadata.items() if name != missing}
        path.write_text(json.dumps(earlier), encoding="utf-8")
        with pytest.raises(UserError, match=r"train.gate.de-en.json has no digest .* run: ctxgates gate-labels"):
            rows(split, GateLabels)


def test_a_json_file_that_was_changed(split: Split) -> None:
    path = files(split, GateLabels)[-1]
    metadata = json.loads(path.read_text(encoding="utf-8"))
    changes: List[Dict[str, Any]] = [
        {"rows": metadata["rows"] - 1},
        {"options": {"strategy": "mean"}},
        {"fingerprint": {}},
    ]
    for change in changes:
        path.write_text(json.dumps({**metadata, **change}), encoding="utf-8")
        with pytest.raises(UserError, match="do not belong together; run: ctxgates gate-labels"):
            rows(split, GateLabels)


def test_what_is_digested_does_not_depend_on_how_the_json_is_laid_out(split: Split) -> None:
    path = files(split, GateLabels)[-1]
    metadata = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(dict(reversed(list(metadata.items())))), encoding="utf-8")
    assert np.concatenate(rows(split, GateLabels)).size
