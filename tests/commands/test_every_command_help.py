"""The help of every command in one voice, its errors, and its completion in a shell."""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import SUPPRESS, Action, ArgumentParser
from typing import Iterator, List, Tuple

import pytest

import ctxgates
from fairseq_ctxgates.commands.completion import all_commands, walk

# Every command and analysis, as they are written on the command line.
COMMANDS = {name: parser for name, parser in walk(all_commands("FILE", "DIRECTORY")) if name not in ("", "user-dir")}
LEAVES = [name for name in COMMANDS if name != "analyze"]


@pytest.fixture(autouse=True)
def _restore_argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ctxgates"])


def own_options(parser: ArgumentParser) -> Iterator[Action]:
    return (action for action in parser._actions if action.dest != "help" and action.help is not SUPPRESS)


@pytest.mark.parametrize("command", LEAVES)
def test_each_option_is_explained_in_one_voice(command: str) -> None:
    """In a clause or two that begin in lower case, or with a name, and end without a full stop."""
    for action in own_options(COMMANDS[command]):
        name = "/".join(action.option_strings) or action.dest
        assert action.help, name
        assert not re.search(r"[^.]\.$", action.help), name
        assert re.match(r"[a-z`(\"-]|[A-Z]\w*[A-Z]|[A-Z] |[A-Z]\w*['’]s|CoreNLP|PMI|BLEU", action.help), (
            name,
            action.help,
        )
        if action.nargs != 0 and action.choices is None and action.option_strings:
            metavar = action.metavar if isinstance(action.metavar, str) else ""
            assert metavar and metavar.split("=")[0].isupper(), (name, metavar)


@pytest.mark.parametrize("command", LEAVES)
def test_each_command_says_in_whole_sentences_what_it_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        ctxgates.main([*command.split(), "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: ctxgates {command} ")
    description = " ".join(shown.split("\n\n")[1].split())
    assert re.match(r"[A-Z].*[.?]$", description), description


def usage_errors(command: str) -> List[str]:
    return [*command.split(), "--no-such-option"]


@pytest.mark.parametrize("command", ["", "analyze", *LEAVES])
def test_wrong_usage_goes_to_standard_error_with_status_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        ctxgates.main(usage_errors(command))
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("usage: ctxgates ")
    assert re.match(rf"ctxgates( {command})?: error: ", printed.err.splitlines()[-1])


MISSING: List[Tuple[str, List[str]]] = [
    ("gate-labels", ["missing"]),
    ("preceding-sentences", ["missing", "--one-document"]),
    ("relations", ["missing"]),
    ("describe", ["missing"]),
    ("average-checkpoints", ["--inputs", "missing", "--output", "mean.pt"]),
    ("export", ["--path", "missing", "--output", "stock.pt"]),
    ("analyze bleu-by-length", ["missing", "--sys", "missing", "--ref", "missing"]),
    ("analyze compare", ["--sys", "missing", "--ref", "missing"]),
    ("analyze gates", ["missing", "--path", "missing"]),
    ("analyze forced-decoding", ["missing", "--path", "missing"]),
    ("analyze attention-entropy", ["missing", "--path", "missing"]),
    ("analyze relations", ["missing", "--path", "missing"]),
    ("analyze cxmi", ["missing", "--path", "missing"]),
    ("analyze bleu-by-unknowns", ["missing", "--sys", "missing", "--ref", "missing"]),
    ("analyze coherence", ["--sys", "missing", "--ref", "missing", "--one-document", "--vectors", "missing"]),
    ("analyze contrastive", ["missing", "--path", "missing", "--test-set", "missing"]),
    (
        "analyze sweep",
        ["missing", "--option=--gate-lambda", "--values", "1", "--save-dir", "sweep", "--ref", "missing"],
    ),
]


def test_every_command_that_reads_files_is_in_the_list() -> None:
    assert {command for command, _ in MISSING} == set(LEAVES) - {"completion"}


@pytest.mark.parametrize(("command", "arguments"), MISSING, ids=[command for command, _ in MISSING])
def test_missing_data_is_one_line_on_standard_error_with_status_1(
    command: str,
    arguments: List[str],
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        ctxgates.main([*command.split(), *arguments])
    printed = capsys.readouterr()
    assert stop.value.code == 1, printed.err
    assert "missing" in printed.err
    assert "error" not in printed.out
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    import fairseq_ctxgates

    with pytest.raises(SystemExit) as stop:
        ctxgates.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ctxgates {fairseq_ctxgates.__version__}\n"


@pytest.mark.process
def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    ctxgates.main(["completion", "bash"])
    script = capsys.readouterr().out

    def complete(*words: str) -> List[str]:
        program = (
            f"{script}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
            "function=$(complete -p ctxgates | sed 's/.*-F \\([^ ]*\\).*/\\1/'); $function\n"
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", program], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.split()

    assert complete("ctxgates", "g") == ["gate-labels"]
    assert set(complete("ctxgates", "gate-labels", "--me")) == {"--measure", "--memory"}
    assert complete("ctxgates", "analyze", "cx") == ["cxmi"]
