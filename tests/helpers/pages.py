"""The commands of README pages, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"


def run_block(name: str, smaller: Dict[str, str], folder: Path, page: Path = README) -> str:
    """Run the commands of a marked block in a folder, each text of ``smaller`` replaced, and return what they print."""
    block = rf"<!-- test: {name} -->\n```bash\n(.*?)```"
    match = re.search(block, page.read_text(encoding="utf-8"), re.DOTALL)
    assert match
    commands = match[1]
    for full, small in smaller.items():
        assert full in commands
        commands = commands.replace(full, small)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    finished = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout
