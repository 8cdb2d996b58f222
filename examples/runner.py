"""Jobs of shell commands that run at the same time, with their output in log files and a line of progress.

A step that has run is not run again: next to its log stands a record of its command. So the same run, started again,
goes on where it was interrupted.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, List, Mapping, NamedTuple, Optional, Sequence

from fairseq_ctxgates.files import atomic_write, clean_up_on_failure

TAIL_BYTES = 1 << 16  # of a log, in which progress is looked for
TAIL_LINES = 15  # of a log, which are shown if its command failed


@dataclass(frozen=True)
class Step:
    """A shell command.

    what: it does, in a word or two
    log: the file for its output
    budget: the last options of the command, which may be others when an interrupted run goes on
    keeps_work: what the command made is too dear to be made anew because the command is another one now
    """

    what: str
    command: str
    log: str
    budget: str = ""
    keeps_work: bool = False

    @property
    def shell_command(self) -> str:
        """The command with its budget."""
        return f"{self.command} {self.budget}".rstrip()


@dataclass(eq=False)
class Job:
    """Steps that run one after another.

    after: the jobs that must be done before
    updates: of its training, for the line of progress
    """

    name: str
    steps: Sequence[Step]
    after: Sequence[Job] = ()
    updates: Optional[int] = None
    position: int = 0
    failed: bool = False
    is_fresh: bool = False  # a step has run now, so what reads its files runs again
    started: float = 0.0
    process: Optional[subprocess.Popen[bytes]] = field(default=None, repr=False)

    @property
    def step(self) -> Step:
        """The running step, or the last one if the job is done."""
        return self.steps[min(self.position, len(self.steps) - 1)]

    @property
    def done(self) -> bool:
        """Whether every step has run."""
        return self.position == len(self.steps)


class Record(NamedTuple):
    """What is known of a step that was started: its command, how long it has run in all, and whether it was done."""

    command: str
    budget: str
    seconds: float
    done: bool


def record_file(directory: Path, step: Step) -> Path:
    """Where the record of a step is kept."""
    return directory / f"{step.log}.json"


def read_record(directory: Path, step: Step) -> Record:
    """The record of a step, which is empty if the step was never started."""
    path = record_file(directory, step)
    return Record(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Record("", "", 0.0, False)


def has_run(step: Step, directory: Path) -> bool:
    """Whether the step was done, by the same command."""
    record = read_record(directory, step)
    return record.done and (record.command, record.budget) == (step.command, step.budget)


class Console:
    """Lines of text. Progress is one line below them on a terminal; in a file it is a new line every ten seconds."""

    SECONDS_BETWEEN_LINES = 10

    def __init__(self, stream: Optional[IO[str]] = None) -> None:
        self._stream = stream or sys.stdout
        self._start = time.monotonic()
        self._printed = 0.0
        self._clear = "\r\x1b[K" if self._stream.isatty() else ""

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


def progress_of(job: Job, directory: Path) -> str:
    """The running step of a job; for training also the epoch, updates and loss from the JSON lines of fairseq's log."""
    if job.done:
        return f"{job.name}: done"
    if job.step.what != "training":
        return f"{job.name}: {job.step.what}"
    lines = re.findall(r"\| train_inner \| (\{.*\})", tail_of(directory / job.step.log))
    if not lines:
        return f"{job.name}: starting"
    last = json.loads(lines[-1])
    of_all = "" if job.updates is None else f"/{job.updates}"
    return f"{job.name}: epoch {last['epoch']}, {last['num_updates']}{of_all} updates, loss {float(last['loss']):.2f}"


def tail_of(log: Path) -> str:
    """The end of a log."""
    with open(log, "rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
        return stream.read().decode(errors="replace")


class Runner:
    """Runs jobs in a directory.

    Args:
        environment: variables of the commands, beside those of this process
        at_once: how many jobs run at the same time; None is all
        goes_on: after a step that failed, the jobs that do not need it go on
        seconds: after which everything is stopped
    """

    def __init__(
        self,
        directory: Path,
        console: Console,
        environment: Optional[Mapping[str, str]] = None,
        at_once: Optional[int] = None,
        goes_on: bool = False,
        seconds: float = math.inf,
    ) -> None:
        self._directory = directory
        self._console = console
        self._at_once = sys.maxsize if at_once is None else at_once
        self._goes_on = goes_on
        self._seconds = seconds
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            **(environment or {}),
        }

    def run(self, jobs: Sequence[Job]) -> None:
        """Run the jobs, each of which comes after those that it needs.

        Raises:
            SystemExit: a step failed, with the end of its log; there was not enough time; or there is work of another
                command that would be lost
        """
        self._check_records(jobs)
        failures: List[str] = []
        try:
            with clean_up_on_failure():
                while self._advance(jobs, failures):
                    running = [progress_of(job, self._directory) for job in jobs if job.process is not None]
                    self._console.progress(" | ".join(running))
                    if self._console.seconds > self._seconds:
                        raise SystemExit(f"stopped after {self._console.seconds:.0f} s; the same command goes on")
                    time.sleep(0.3)
        finally:
            for job in jobs:
                if job.process is not None:
                    os.killpg(job.process.pid, signal.SIGTERM)
                    job.process.wait()
                    self._record(job, done=False)
        if failures:
            raise SystemExit("\n".join(failures))

    def _check_records(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            for step in job.steps:
                before = read_record(self._directory, step).command
                if step.keeps_work and before not in ("", step.command):
                    folder = (self._directory / step.log).parent
                    raise SystemExit(
                        f"error: {job.name}: {step.what} was begun by another command:\n    {before}\nnot by\n    "
                        f"{step.command}\nRemove {folder} to begin anew, or name another --directory"
                    )

    def _advance(self, jobs: Sequence[Job], failures: List[str]) -> bool:
        """Note what has ended and start what can start; whether anything runs."""
        for job in jobs:
            status = None if job.process is None else job.process.poll()
            if status is not None:
                self._end_step(job, status, failures)
        for job in jobs:
            running = sum(other.process is not None for other in jobs)
            is_ready = not job.failed and job.process is None and all(other.done for other in job.after)
            if is_ready and running < self._at_once:
                self._start_next_step(job)
        return any(job.process is not None for job in jobs)

    def _start_next_step(self, job: Job) -> None:
        """Start the job's next step that has not run yet, if there is one."""
        is_fresh = job.is_fresh or any(other.is_fresh for other in job.after)
        while not job.done and has_run(job.step, self._directory) and (job.step.keeps_work or not is_fresh):
            job.position += 1
        if job.done:
            return
        job.is_fresh = True
        job.started = time.monotonic()
        for line in job.step.shell_command.splitlines():
            self._console.say(f"$ {line}")
        log = self._directory / job.step.log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab" if job.step.keeps_work else "wb") as stream:
            job.process = subprocess.Popen(
                ["sh", "-e", "-c", job.step.shell_command],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that all that the shell has started can be stopped with it
            )

    def _end_step(self, job: Job, status: int, failures: List[str]) -> None:
        self._record(job, done=status == 0)
        job.process = None
        if status == 0:
            job.position += 1
            return
        job.failed = True
        failures.append(failure(job, self._directory / job.step.log, status))
        if not self._goes_on:
            raise SystemExit(failures[-1])
        self._console.say(failures[-1])

    def _record(self, job: Job, done: bool) -> None:
        step, path = job.step, record_file(self._directory, job.step)
        earlier = read_record(self._directory, step).seconds if step.keeps_work else 0.0
        record = Record(step.command, step.budget, earlier + time.monotonic() - job.started, done)
        with atomic_write(path, durable=False) as temporary:
            temporary.write_text(json.dumps(record._asdict(), indent=2) + "\n", encoding="utf-8")


def failure(job: Job, log: Path, status: int) -> str:
    """The message about a step that failed, with the end of its log."""
    tail = tail_of(log).splitlines()[-TAIL_LINES:]
    return "\n".join(
        ["", *tail, f"error: {job.name}: {job.step.what} failed with status {status}; its output is in {log}"]
    )
