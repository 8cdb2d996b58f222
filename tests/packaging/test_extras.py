"""Packages that only some commands need: all else works without them, and a command that needs one says which."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import pytest

from tests.helpers.pages import ROOT

OPTIONAL = (
    *("numba", "stanza", "matplotlib", "gensim", "distributed", "sacremoses", "sentencepiece"),
    *("subword_nmt", "shtab"),
)
TEXTS = ["--sys", "{data}/train.docids", "--ref", "{data}/train.docids"]
# By the command, the package that it names first and its extra.
NEEDS: Dict[Tuple[str, ...], Tuple[str, str]] = {
    ("gate-labels", "{data}"): ("numba", "gate-labels"),
    ("gate-labels", "{data}", "--workers", "2"): ("numba", "gate-labels"),
    ("relations", "{data}"): ("stanza", "relations"),
    ("relations", "{data}", "--extractor", "stanza"): ("stanza", "relations"),
    ("relations", "{data}", "--dask", "tcp://localhost:1"): ("distributed", "dask"),
    ("analyze", "forced-decoding", "{data}", "--path", "x.pt"): ("numba", "gate-labels"),
    ("analyze", "compare", *TEXTS, "--figure", "{data}/x.png"): ("matplotlib", "analyze"),
    ("analyze", "coherence", *TEXTS, "--one-document", "--vectors", "x"): ("gensim", "coherence"),
    ("completion", "bash"): ("shtab", "completion"),
}
# In one process, because importing fairseq takes seconds: prints the exit status and the error of each command.
PROGRAM = """
import contextlib, io, json, sys
optional, commands = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(optional))
import ctxgates
import fairseq_ctxgates.models, fairseq_ctxgates.tasks

def run(arguments):
    printed, status = io.StringIO(), 0
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        try:
            ctxgates.main(arguments)
        except SystemExit as stop:
            status = stop.code
    return status, printed.getvalue()

print(json.dumps([run(arguments) for arguments in commands]))
"""


def run_without(packages: Tuple[str, ...], commands: List[List[str]]) -> List[Tuple[int, str]]:
    """The exit status of each command, and what it wrote to standard error, where these packages are missing."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([packages, commands])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    return [(status, error) for status, error in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.process
def test_what_needs_a_package_names_it_and_its_extra_and_all_else_works(documents: Path) -> None:
    commands = [[word.format(data=documents) for word in command] for command in NEEDS]
    texts = [word.format(data=documents) for word in TEXTS]
    works = [["describe", str(documents)], ["analyze", "compare", *texts], ["user-dir"]]
    results = run_without(OPTIONAL, [*commands, *works])
    for command, (package, extra), (status, error) in zip(commands, NEEDS.values(), results):
        last = error.splitlines()[-1]
        assert status == 1, command
        assert last.startswith("error: "), command
        assert f" needs {package} (" in last, command
        assert last.endswith(f": pip install 'fairseq-ctxgates[{extra}]'"), command
        assert "Traceback" not in error, command
    assert [status for status, _ in results[len(commands) :]] == [0, 0, 0]
