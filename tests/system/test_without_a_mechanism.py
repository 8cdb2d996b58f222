"""A mechanism is one room: without its folder and its entry in the tuple, everything else works."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

from fairseq_ctxgates.data.data_directory import find_splits, fingerprint
from fairseq_ctxgates.data.side_stream_files import write_side_stream
from fairseq_ctxgates.mechanisms import MECHANISMS
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import make_pairs
from tests.helpers.pages import ROOT
from warm_python import WarmPython

# By the folder of each mechanism, what turns it on in training.
OPTIONS = {
    "smoothing": ["--smoothing", "fcwm", "--smoothing-words", "all"],
    "relations": ["--relation-fusion", "transform"],
    "inter_sentence": ["--inter-sentence-gate"],
    "context_gates": ["--context-gate", "interpolate"],
}


def test_every_mechanism_is_here() -> None:
    assert [mechanism.__module__.split(".")[1] for mechanism in MECHANISMS] == list(OPTIONS)


def package_without(room: str, folder: Path) -> Path:
    """A copy of the package without a mechanism's folder, and without the two lines that name it in mechanisms.py."""
    package = folder / "fairseq_ctxgates"
    shutil.copytree(ROOT / "fairseq_ctxgates", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(package / room)
    listing = package / "mechanisms.py"
    text = listing.read_text(encoding="utf-8")
    imported = re.search(rf"from fairseq_ctxgates\.{room}\.mechanism import (\w+)\n", text)
    assert imported
    text = text.replace(imported[0], "")
    text, removed = re.subn(rf"\b{imported[1]}\b(, )?", "", text)
    assert removed == 1
    listing.write_text(text, encoding="utf-8")
    return package


@pytest.mark.slow
@pytest.mark.parametrize("room", list(OPTIONS))
def test_it_trains_and_generates_with_the_others(room: str, tmp_path: Path, warm_python: WarmPython) -> None:
    package = package_without(room, tmp_path)
    pairs = {"train": make_pairs(40, 1), "valid": make_pairs(8, 2), "test": make_pairs(8, 3)}
    data = binarize(tmp_path / "data", pairs, "de", "en")
    for split in find_splits(data, "de", "en"):
        metadata = {"fingerprint": fingerprint(split, ["source"])}
        rows: List[List[int]] = [[], *([row] for row in range(len(pairs[split.name]) - 1))]
        write_side_stream(split.stream_prefix("preceding"), np.int64, metadata, rows)
        write_side_stream(split.stream_prefix("relation"), np.int32, metadata, [[0, -1]] * len(rows))
    environment = warm_python.environment(PYTHONPATH=str(tmp_path))

    def run(command: str, *arguments: Any) -> str:
        started = [warm_python.python, "-m", f"fairseq_cli.{command}", str(data), "--user-dir", str(package)]
        started += ["--task", "context_translation", "--cpu", "--num-workers", "0", *map(str, arguments)]
        done = subprocess.run(started, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = done.stdout.decode()
        assert done.returncode == 0, output
        return output

    others: List[str] = [option for name, options in OPTIONS.items() if name != room for option in options]
    training = ("--optimizer", "adam", "--lr", "0.005", "--batch-size", "16", "--max-update", "2")
    for arch, options in (("context_transformer_tiny", others), ("rnnsearch_tiny", [])):
        output = run("train", "--arch", arch, *options, *training, "--save-dir", tmp_path / arch)
        assert "done training" in output
        checkpoint = tmp_path / arch / "checkpoint_last.pt"
        output = run("generate", "--path", checkpoint, "--gen-subset", "test", "--batch-size", "8", "--max-len-b", "5")
        assert len(re.findall(r"^H-\d+", output, re.MULTILINE)) == 8
