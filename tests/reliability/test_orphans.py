"""Nothing goes on when the process that started it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import pytest

pytestmark = pytest.mark.process

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


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("started", STARTS)
def test_children_end_when_their_parent_is_killed(started: str, tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    numbers, expected = tmp_path / "numbers", 2 if started == "a pool" else 1
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    parent = subprocess.Popen([sys.executable, "-c", STARTS[started], str(numbers)], env=environment)
    try:
        assert wait_until(lambda: numbers.exists() and numbers.read_text().count("\n") == expected)
        children = [int(number) for number in numbers.read_text().split()]
        assert all(map(is_running, children))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert wait_until(lambda: not any(map(is_running, children)))
