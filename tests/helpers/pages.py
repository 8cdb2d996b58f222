"""The commands of pages and of the examples' scripts, run as they stand there, or recorded."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Dict, List, Sequence

import fairseq_ctxgates
from warm_python import WarmPython

ROOT = Path(__file__).parent.parent.parent
README, DOCS = ROOT / "README.md", ROOT / "docs"
PAPERS = ("car", "fra", "isg", "rcg")  # the examples with the papers' settings
RECORDED = ("ctxgates", "fairseq-preprocess", "fairseq-train", "fairseq-generate", "fairseq-interactive")
SILENCED = ("sacremoses", "subword-nmt")
# In the place of a recorded program: writes its name and arguments to a file, and gives what a script needs to go on.
RECORDER = r"""#!/usr/bin/env bash
name=${0##*/}
[ "$*" != user-dir ] || { echo "$USER_DIR"; exit; }
printf '%s\0' "$name" "$@" $'\n' >>"$RECORD"
[ "$name" != fairseq-generate ] || printf 'D-0\t0\tword\n'
while [ $# -gt 1 ]; do
    [ "$1" != --save-dir ] || mkdir -p "$2"
    shift
done
"""


def run_block(name: str, smaller: Dict[str, str], folder: Path, python: WarmPython, page: Path = README) -> str:
    """Run the commands of a marked block in a folder, each text of ``smaller`` replaced, and return what they print."""
    block = rf"<!-- test: {name} -->\n```bash\n(.*?)```"
    match = re.search(block, page.read_text(encoding="utf-8"), re.DOTALL)
    assert match
    commands = match[1]
    for full, small in smaller.items():
        assert full in commands
        commands = commands.replace(full, small)
    finished = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=python.environment(CUDA_VISIBLE_DEVICES=""),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def blocks(page: Path) -> List[str]:
    """The commands of a page: its blocks that are marked as such."""
    return re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def record(script: str, folder: Path, silenced: Sequence[str] = (), **environment: str) -> List[List[str]]:
    """Run a script in a folder, with recorders in the place of fairseq's commands and ours, and nothing in the place of
    those that make words and subwords.

    Args:
        silenced: further programs in whose place there is nothing
        environment: variables

    Returns:
        the name and the arguments of each recorded command, as bash hands them over, in order
    """
    with tempfile.TemporaryDirectory() as temporary:
        programs = Path(temporary) / "bin"
        programs.mkdir()
        for name in (*RECORDED, *SILENCED, *silenced):
            (programs / name).write_text(
                RECORDER if name in RECORDED else "#!/bin/sh\ncat >/dev/null\n", encoding="utf-8"
            )
            (programs / name).chmod(0o755)
        record_file = Path(temporary) / "record"
        record_file.touch()
        variables = {
            "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
            "RECORD": str(record_file),
            "USER_DIR": str(Path(fairseq_ctxgates.__file__).parent),
        }
        script_file = Path(temporary) / "script"
        script_file.write_text(script, encoding="utf-8")
        finished = subprocess.run(
            ["bash", "-euo", "pipefail", str(script_file)],
            cwd=folder,
            env={**os.environ, **variables, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert finished.returncode == 0, finished.stdout
        commands: List[List[str]] = [[]]
        for word in record_file.read_text(encoding="utf-8").split("\0")[:-1]:
            if word == "\n":
                commands.append([])
            else:
                commands[-1].append(word)
        return commands[:-1]


def page_commands(page: Path, folder: Path) -> List[List[str]]:
    """The commands of a page, recorded; see :func:`record`."""
    return [command for block in blocks(page) for command in record(block, folder)]


def value_of(option: str, command: Sequence[str]) -> str:
    """The value of an option of a command, the last one if it is given twice."""
    places = [place for place, word in enumerate(command) if word == option]
    return command[places[-1] + 1]
