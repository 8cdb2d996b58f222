"""Nothing goes on when the process that started it is killed or interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

from tests.helpers.processes import is_running, wait_until

pytestmark = pytest.mark.process
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")

SLEEPER = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""
STARTS = {
    "a command": """
import subprocess, sys
from fairseq_ctxgates.processes import ending_with_parent
subprocess.run(ending_with_parent([sys.executable, "-m", "sleeper", sys.argv[1]]))
""",
    "what a step of the examples starts": """
import sys
from pathlib import Path
from runner import Console, Job, Runner, Step
step = Step("sleeping", f"{sys.executable} -m sleeper {sys.argv[1]}; true", "step.log")
Runner(Path(sys.argv[1]).parent, Console()).run([Job("sleeper", [step])])
""",
    "a CoreNLP server": """
import sys, time
from fairseq_ctxgates.relations.extraction.corenlp import request_properties
from fairseq_ctxgates.relations.extraction.corenlp_server import ManagedServer, check_installation
check_installation()
server = ManagedServer(request_properties("corenlp-openie", "en"), 60, "1G")._start_process().server
with open(sys.argv[1], "a") as file:
    file.write(f"{server.pid}\\n")
time.sleep(600)
""",
    "a pool": """
import runpy, sys
from fairseq_ctxgates.processes import process_pool
with process_pool(2) as pool:
    list(pool.map(runpy.run_module, ["sleeper"] * 2))
""",
}


def stop_a_parent(started: str, stop: Callable[[subprocess.Popen[str]], object], folder: Path) -> str:
    """Start a parent of sleeping children in a session of its own, and stop it; what it printed on standard error."""

    def are_there() -> bool:
        return numbers.exists() and numbers.read_text().count("\n") == (2 if started == "a pool" else 1)

    (folder / "sleeper.py").write_text(SLEEPER)
    numbers = folder / "numbers"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    command = [sys.executable, "-c", STARTS[started], str(numbers)]
    parent = subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # In the background of a shell script, where these tests may run, programs ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert wait_until(lambda: are_there() or parent.poll() is not None, 300) and are_there()
        children = [int(number) for number in numbers.read_text().split()]
        assert all(map(is_running, children))
        stop(parent)
        printed = parent.communicate(timeout=120)[1]
    finally:
        parent.kill()
    assert wait_until(lambda: not any(map(is_running, children)))
    return printed


@linux
@pytest.mark.parametrize("started", STARTS)
def test_children_end_when_their_parent_is_killed(started: str, tmp_path: Path) -> None:
    stop_a_parent(started, subprocess.Popen.kill, tmp_path)


@linux
@pytest.mark.parametrize("is_of_terminal", [True, False])
def test_a_pool_ends_at_once_when_it_is_interrupted(is_of_terminal: bool, tmp_path: Path) -> None:
    """A terminal interrupts the workers as well, which then print no traceback of their own."""

    def interrupt(parent: subprocess.Popen[str]) -> None:
        (os.killpg if is_of_terminal else os.kill)(parent.pid, signal.SIGINT)

    assert stop_a_parent("a pool", interrupt, tmp_path).count("KeyboardInterrupt") == 1
