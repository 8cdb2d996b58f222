"""The README's commands for an existing pipeline run as they stand there, with a smaller model and fewer epochs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import make_pairs
from tests.corpus import binarize

README = Path(__file__).parent.parent / "README.md"
SMALLER = {
    "--arch rcg_transformer ": "--arch rcg_transformer_tiny ",
    "--max-epoch 30": "--max-epoch 2",
    "--num-epoch-checkpoints 5": "--num-epoch-checkpoints 2",
}


@pytest.mark.slow
def test_pipeline(tmp_path: Path) -> None:
    match = re.search(r"<!-- test: pipeline -->\n```bash\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert match
    commands = match[1]
    for full, small in SMALLER.items():
        assert full in commands
        commands = commands.replace(full, small)
    splits = {
        name: make_pairs(number, seed)
        for seed, (name, number) in enumerate({"train": 30, "valid": 5, "test": 5}.items())
    }
    (tmp_path / "data-bin").mkdir()
    binarize(tmp_path / "data-bin" / "X", splits, "de", "en", joined=True)

    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    finished = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout
    assert len(re.findall(r"^D-\d+", finished.stdout, re.MULTILINE)) == 5
    assert "gate_agreement" in finished.stdout
    assert (tmp_path / "checkpoints/rcg/average.pt").exists()
    assert (tmp_path / "gates.png").exists()
