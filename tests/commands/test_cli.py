"""The command ``ctxgates``."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import List, Tuple

import pytest
from fairseq import utils

import ctxgates
import fairseq_ctxgates
import fairseq_ctxgates.errors
from fairseq_ctxgates.command_line import CommandParser
from fairseq_ctxgates.errors import exit_on_user_error


@pytest.fixture(autouse=True)
def _restore_argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ctxgates"])


@pytest.mark.process
def test_user_dir_is_absolute_from_any_folder_and_imports_nothing_heavy(tmp_path: Path) -> None:
    program = "import sys, ctxgates; ctxgates.main(['user-dir']); assert not {'torch', 'fairseq'} & set(sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(ctxgates.__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, check=True
    )
    path = Path(done.stdout.decode().strip())
    assert path.is_absolute()
    assert path == Path(fairseq_ctxgates.__file__).parent


def test_a_condition_on_a_misspelt_option() -> None:
    parser = CommandParser()
    parser.add_argument("--sentence")
    parser.add_condition("--figure", lambda args: False, "sentense")
    with pytest.raises(AttributeError, match="sentense"):
        parser.parse_args([])


def test_fairseq_accepts_the_user_dir_also_when_the_package_was_imported_before() -> None:
    utils.import_user_module(Namespace(user_dir=ctxgates.user_dir()))
    assert sys.modules["fairseq_ctxgates"] is fairseq_ctxgates


@pytest.mark.parametrize("command", sorted(set(ctxgates.COMMANDS) - {"user-dir"}))
def test_every_command_explains_itself_under_its_own_name(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        ctxgates.main([command, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: ctxgates {command} ")


@pytest.mark.parametrize("command", ["gate-labels", "preceding-sentences", "relations"])
def test_a_command_as_a_script_of_the_clone(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(ctxgates.__file__).parent / "preprocess" / f"{command.replace('-', '_')}.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(script), run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: ctxgates {command} ")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        ctxgates.main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown and summary in shown for name, (_, summary) in ctxgates.COMMANDS.items())


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["--no-such-option"], ["user-dir", "superfluous"]])
def test_wrong_usage_exits_with_status_2(arguments: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        ctxgates.main(arguments)
    assert stop.value.code == 2
    command = "user-dir" if "user-dir" in arguments else "COMMAND"
    assert f"usage: ctxgates {command}" in capsys.readouterr().err


PRINTING = f"""
import runpy, sys
errors = runpy.run_path({fairseq_ctxgates.errors.__file__!r})  # without fairseq
with errors["exit_on_user_error"]():
    print("a report" * int(sys.argv[1]))
"""


def print_to(output: int, times: int) -> Tuple[int, str]:
    """The status, and what is printed on standard error."""
    command = [sys.executable, "-c", PRINTING, str(times)]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, env=buffered, stdout=output, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


@pytest.mark.process
@pytest.mark.parametrize("times", [1, 100_000])  # written when the command ends, and at once
def test_nothing_is_said_to_a_reader_that_has_ended(times: int) -> None:
    """As head does when it has its lines."""
    reading, writing = os.pipe()
    os.close(reading)
    assert print_to(writing, times) == (1, "")
    os.close(writing)


def test_a_file_that_cannot_be_read_is_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop, exit_on_user_error():
        tmp_path.read_bytes()
    assert stop.value.code == 1
    assert capsys.readouterr().err == f"error: {tmp_path}: Is a directory\n"


INTERRUPTED = f"""
import os, runpy, signal
errors = runpy.run_path({fairseq_ctxgates.errors.__file__!r})
with errors["exit_on_user_error"]():
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.process
def test_ctrl_c_is_one_line() -> None:
    # In the background of a shell script, where these tests may run, programs ignore the signal.
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")


@pytest.mark.process
def test_output_to_a_full_disk_is_an_error_of_one_line() -> None:
    with open("/dev/full", "wb") as full:
        assert print_to(full.fileno(), 1) == (1, "error: standard output: No space left on device\n")


def test_a_user_error_is_one_line_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.pt"
    with pytest.raises(SystemExit) as stop:
        ctxgates.main(["average-checkpoints", "--inputs", str(missing), "--output", str(tmp_path / "mean.pt")])
    assert stop.value.code == 1
    assert capsys.readouterr().err == f"error: {missing} cannot be read: No such file or directory; name a checkpoint\n"
