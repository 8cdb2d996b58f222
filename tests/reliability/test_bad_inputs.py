"""A table of bad inputs: each gives one line that names the file, the line and the remedy, and nothing is written.

The rows are in ``bad_inputs/``, a file for each group of commands.
"""

from __future__ import annotations

import gc
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

import ctxgates
from fairseq_ctxgates.errors import UserError
from tests.helpers.fairseq_commands import TASK, TRAINING, run
from tests.helpers.files import contents
from tests.reliability.bad_inputs.analyses import ANALYSES
from tests.reliability.bad_inputs.fairseq_commands import FAIRSEQ_COMMANDS
from tests.reliability.bad_inputs.folder import make_folder
from tests.reliability.bad_inputs.preprocessing import PREPROCESSING
from tests.reliability.bad_inputs.row import DATA_ERROR, Row, nothing

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bad inputs")]  # which share a folder
ROWS = (*PREPROCESSING, *ANALYSES, *FAIRSEQ_COMMANDS)
PROGRESS = re.compile(r"[\w -]+: +\d+%\|")  # of tqdm, on standard error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bad_inputs") / "folder"
    made.mkdir()
    make_folder(made)
    return made


@pytest.fixture(scope="module")
def before(folder: Path) -> Dict[str, bytes]:
    return contents(folder)


def error_of(row: Row, capfd: pytest.CaptureFixture[str]) -> str:
    """Run the row's command and return what it says, which must be one line."""
    program, *options = shlex.split(row.command)
    capfd.readouterr()
    if program == "ctxgates":
        with pytest.raises(SystemExit) as stop:
            ctxgates.main(options)
        assert stop.value.code == row.status
        shown = capfd.readouterr().err
        lines = [line for line in re.split("[\r\n]", shown) if line and not PROGRESS.match(line)]
        if row.status == DATA_ERROR:
            assert len(lines) == 1 and lines[0].startswith("error: "), shown
        else:
            assert len([line for line in lines if "error: " in line]) == 1 and "error: " in lines[-1], shown
        return lines[-1]
    name = program.partition("-")[2]
    defaults = {
        "train": (*TASK, *TRAINING, "--save-dir", "saved"),
        "interactive": (*TASK, "--cpu"),
    }.get(name, (*TASK, "--cpu", "--num-workers", "0", "--batch-size", "8"))
    if row.status == DATA_ERROR:
        with pytest.raises(UserError) as error:  # which fairseq's commands do not catch
            run(name, *options[:1], *defaults, *options[1:])
        message = str(error.value)
        assert "\n" not in message
        return message
    with pytest.raises(SystemExit) as stop:
        run(name, *options[:1], *defaults, *options[1:])
    assert stop.value.code == row.status
    return capfd.readouterr().err.splitlines()[-1]


def name_of(row: Row) -> str:
    """The command of a row: ``gate-labels``, ``analyze cxmi``, ``fairseq-train``."""
    program, *options = row.command.split()
    words = [*options, ""][: 2 if options[:1] == ["analyze"] else 1] if program == "ctxgates" else [program]
    return " ".join(words)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{name_of(row)}: {row.about}")
def test_bad_input(
    row: Row,
    folder: Path,
    before: Dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if row.status == DATA_ERROR:  # else nothing is read
        folder = Path(shutil.copytree(folder, tmp_path / "folder"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["ctxgates"])
    unraisable: List[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    if row.change is not nothing:
        row.change()
        before = contents(folder)

    message = error_of(row, capfd)

    for piece in row.pieces:
        assert piece in message
    gc.collect(1)
    assert not unraisable, "an exception was ignored"
    assert contents(folder) == before


def test_no_row_is_there_twice() -> None:
    given: List[Tuple[str, str]] = [(name_of(row), row.about) for row in ROWS]
    assert len(set(given)) == len(given)
