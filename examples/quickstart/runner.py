"""Jobs of shell commands that run at the same time, with their output in log files and a line of progress."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Dict, List, NamedTuple, Optional, Sequence


class Step(NamedTuple):
    """A shell command: what it does in a word or two, the command, and the file for its output."""

    what: str
    command: str
    log: str


@dataclass
class Job:
    """Steps that run one after another."""

    name: str
    steps: List[Step]
    position: int = -1
    process: Optional[subprocess.Popen[bytes]] = field(default=None, repr=False)

    @property
    def step(self) -> Step:
        """The running step, or the last one if the job is done."""
        return self.steps[min(self.position, len(self.steps) - 1)]

    @property
    def done(self) -> bool:
        """Whether every step has run."""
        return self.position == len(self.steps)


class Console:
    """Lines of text. Progress is one line below them on a terminal; in a file it is a new line every ten seconds."""

    SECONDS_BETWEEN_LINES = 10

    def __init__(self, stream: IO[str] = sys.stdout) -> None:
        self._stream = stream
        self._start = time.monotonic()
        self._printed = 0.0
        self._clear = "\r\x1b[K" if stream.isatty() else ""

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        """Print a line that stays."""
        print(f"{self._clear}{text}", file=self._stream, flush=True)

    def progress(self, text: str) -> None:
        """Print a line that the next call replaces."""
        text = f"[{self.seconds:3.0f} s] {text}"
        if self._clear:
            width = shutil.get_terminal_size().columns - 1
            print(f"{self._clear}{text[:width]}", end="", file=self._stream, flush=True)
        elif self.seconds - self._printed >= self.SECONDS_BETWEEN_LINES:
            self._printed = self.seconds
            self.say(text)


def progress_of(job: Job, directory: Path, updates: int) -> str:
    """The running step of a job; for training also the epoch, updates and loss from the JSON lines of fairseq's log."""
    if job.done:
        return f"{job.name}: done"
    if job.step.what != "training":
        return f"{job.name}: {job.step.what}"
    log = (directory / "logs" / job.step.log).read_text(encoding="utf-8", errors="replace")
    lines = re.findall(r"\| train_inner \| (\{.*\})", log)
    if not lines:
        return f"{job.name}: starting"
    last = json.loads(lines[-1])
    return f"{job.name}: epoch {last['epoch']}, {last['num_updates']}/{updates} updates, loss {float(last['loss']):.2f}"


def start_next_step(job: Job, directory: Path, console: Console, environment: Dict[str, str]) -> None:
    """Start the step after the one that has ended, if there is one."""
    job.position += 1
    if job.done:
        return
    for line in job.step.command.splitlines():
        console.say(f"$ {line}")
    with open(directory / "logs" / job.step.log, "wb") as log:
        job.process = subprocess.Popen(
            ["sh", "-e", "-c", job.step.command], cwd=directory, env=environment, stdout=log, stderr=subprocess.STDOUT
        )


def run_jobs(jobs: Sequence[Job], directory: Path, console: Console, updates: int) -> None:
    """Run the jobs at the same time. If a step fails, terminate every other job and exit.

    Raises:
        SystemExit: a step failed; the message has the end of its log.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    try:
        while not all(job.done for job in jobs):
            for job in jobs:
                status = None if job.done or job.process is None else job.process.poll()
                if status:
                    raise SystemExit(failure(job, directory / "logs" / job.step.log, status))
                if not job.done and (job.process is None or status == 0):
                    start_next_step(job, directory, console, environment)
            console.progress(" | ".join(progress_of(job, directory, updates) for job in jobs))
            time.sleep(0.3)
    finally:
        for job in jobs:
            if job.process is not None and job.process.poll() is None:
                job.process.terminate()


def failure(job: Job, log: Path, status: int) -> str:
    """The message about a step that failed, with the end of its log."""
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
    return "\n".join(
        ["", *tail, f"error: {job.name}: {job.step.what} failed with status {status}; its output is in {log}"]
    )
