"""Jobs of shell commands that run at the same time, with their output in log files and a line of progress.

A step that has run is not run again. A file next to its log records its command, the commands before it, and their
runs. So the same run, started again, goes on where it was interrupted. If a step has changed or has run again, the
steps after it run again too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, List, Mapping, NamedTuple, Optional, Sequence

from fairseq_ctxgates.files import atomic_write, clean_up_on_failure
from fairseq_ctxgates.processes import group_ending_with_parent

TAIL_BYTES = 1 << 16  # how much of a log's end is searched for progress
CLEANING_SECONDS = 30  # that commands have to clean up when they are stopped
LIMIT = re.compile(r"(--max-epoch|--max-update|--patience)[ =]+(\d+)")  # a training's, in its budget
TAIL_LINES = 15  # how many of a log's last lines are shown if its command failed


def slug(name: str) -> str:
    """A name in the form of a file's name: ``gates, λ = 1`` becomes ``gates-λ-1``."""
    return "-".join(re.findall(r"[\w.]+", name))


@dataclass(frozen=True)
class Step:
    """A shell command.

    Attributes:
        what: what it does, in a word or two
        log: the file for its output
        budget: the last options of the command, which may be different when an interrupted run goes on
        keeps_work: whether its results are too costly to be made again just because the command has changed
        inputs: a digest of the files that it reads besides those that other steps make; empty if it is not known
    """

    what: str
    command: str
    log: str
    budget: str = ""
    keeps_work: bool = False
    inputs: str = ""

    @property
    def shell_command(self) -> str:
        """The command with its budget."""
        return f"{self.command} {self.budget}".rstrip()


@dataclass(eq=False)
class Job:
    """Steps that run one after another.

    Attributes:
        after: the jobs that must be done first
        updates: the number of updates of its training, for the line of progress
    """

    name: str
    steps: Sequence[Step]
    after: Sequence[Job] = ()
    updates: Optional[int] = None
    position: int = 0
    failed: bool = False
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

    @property
    def origins(self) -> List[str]:
        """For each step, a digest of its command and of all commands before it, in this job and in those it needs."""
        before = [text for job in self.after for text in (job.origins[-1], job.steps[-1].budget)]
        found = []
        for step in self.steps:
            content = json.dumps([*before, step.command]).encode()
            found.append(hashlib.blake2b(content, digest_size=8).hexdigest())
            before = [found[-1], step.budget]
        return found


class Record(NamedTuple):
    """The record of a step that was started.

    Attributes:
        command, budget: those of the step
        origin: the digest of its command and of all commands before it
        seconds: how long it has run in all
        done: whether it was finished
        run: the name of the run that finished it
        after: the names of the runs that it came after
        inputs: as of the step
    """

    command: str
    budget: str
    origin: str
    seconds: float
    done: bool
    run: str = ""
    after: str = ""
    inputs: str = ""

    def has_other_inputs(self, step: Step) -> bool:
        """Whether the step would now read other files, as far as both are known."""
        return bool(self.inputs and step.inputs) and self.inputs != step.inputs


def record_file(directory: Path, log: str) -> Path:
    """Where the record of the step with this log is kept."""
    return directory / f"{log}.json"


def read_record(directory: Path, log: str) -> Optional[Record]:
    """The record of the step with this log; None if the step was never started."""
    path = record_file(directory, log)
    return Record(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def runs_before(job: Job, position: int, directory: Path) -> str:
    """The names of the runs that a step comes after: of the step before it in the job, or of the jobs that it needs."""
    steps = [job.steps[position - 1]] if position else [other.steps[-1] for other in job.after]
    return "".join(record.run for record in (read_record(directory, step.log) for step in steps) if record is not None)


def has_run(job: Job, position: int, directory: Path) -> bool:
    """Whether a step of a job was done, by the same command, from the same inputs, after the same commands, of which
    none has run since."""
    step = job.steps[position]
    record = read_record(directory, step.log)
    if record is None or not record.done or record.has_other_inputs(step):
        return False
    expected = job.origins[position], step.budget, runs_before(job, position, directory)
    return (record.origin, record.budget, record.after) == expected


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
        environment: variables of the commands, in addition to those of this process
        at_once: how many jobs run at the same time; None for all
        goes_on: whether, after a step has failed, the jobs that do not need it go on
        seconds: the time after which everything is stopped
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
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            **(environment or {}),
        }

    def run(self, jobs: Sequence[Job]) -> bool:
        """Run the jobs, each after those that it needs; returns False if the time was over first.

        Raises:
            SystemExit: a step failed, with the end of its log; or as :meth:`check`
        """
        self.check(jobs)
        failures: List[str] = []
        is_in_time = True
        with clean_up_on_failure():
            try:
                while is_in_time and self._advance(jobs, failures):
                    running = [progress_of(job, self._directory) for job in jobs if job.process is not None]
                    done = f"{sum(job.done for job in jobs)} of {len(jobs)} done"
                    self._console.progress(" | ".join([done, *running]))
                    is_in_time = self._console.seconds <= self._seconds
                    time.sleep(0.3)
            finally:
                self._stop(jobs)
        if failures:
            raise SystemExit("\n".join(failures))
        return is_in_time

    def check(self, jobs: Sequence[Job]) -> None:
        """Raise SystemExit if work of other commands would be lost."""
        for job in jobs:
            self._check_records(job)

    def _stop(self, jobs: Sequence[Job]) -> None:
        running = [job for job in jobs if job.process is not None]
        for job in running:
            assert job.process is not None
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(job.process.pid, signal.SIGTERM)
        end = time.monotonic() + CLEANING_SECONDS
        for job in running:
            assert job.process is not None
            wait_for_group(job.process, end)
        for job in running:
            self._record(job, done=False)

    def _check_records(self, job: Job) -> None:
        for position, (step, origin) in enumerate(zip(job.steps, job.origins)):
            record = read_record(self._directory, step.log)
            if record is None or not step.keeps_work:
                continue
            problem = ""
            if record.origin != origin:
                problem = f"was begun by\n    {record.command}\nnow it would be\n    {step.command}"
                if record.command == step.command:
                    problem = "was begun after other commands than those that would now run before it"
            elif record.after != runs_before(job, position, self._directory):
                problem = "was begun before what it reads was made anew"
            elif record.has_other_inputs(step):
                problem = "was begun with other content of the files that it reads"
            elif not is_larger(step.budget, record.budget):
                problem = f"has had {record.budget or 'no limit'}, and {step.budget} is not the same with higher limits"
            if problem:
                folder = (self._directory / step.log).parent
                remedy = f"Remove {folder} to begin anew, or name another --directory"
                raise SystemExit(f"error: {job.name}: {step.what} {problem}.\n{remedy}")

    def _advance(self, jobs: Sequence[Job], failures: List[str]) -> bool:
        """Note what has ended and start what can start; returns whether anything runs."""
        for job in jobs:
            status = None if job.process is None else job.process.poll()
            if status is not None:
                self._end_step(job, status, failures)
        for job in jobs:
            running = sum(other.process is not None for other in jobs)
            is_open = not job.failed and not job.done and job.process is None
            if is_open and all(other.done for other in job.after) and running < self._at_once:
                self._start_next_step(job)
        return any(job.process is not None for job in jobs)

    def _start_next_step(self, job: Job) -> None:
        """Start the job's next step that has not run yet, if there is one."""
        while not job.done and has_run(job, job.position, self._directory):
            job.position += 1
        if job.done:
            return
        earlier = read_record(self._directory, job.step.log)
        # The time of work that is kept includes its earlier runs.
        job.started = time.monotonic() - (earlier.seconds if earlier is not None and job.step.keeps_work else 0.0)
        self._record(job, done=False)
        for line in job.step.shell_command.splitlines():
            self._console.say(f"$ {line}")
        with open(self._directory / job.step.log, "ab" if job.step.keeps_work else "wb") as stream:
            job.process = subprocess.Popen(
                group_ending_with_parent(["sh", "-e", "-c", job.step.shell_command]),
                cwd=self._directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that everything the shell has started can be stopped with it
            )

    def _end_step(self, job: Job, status: int, failures: List[str]) -> None:
        job.process = None
        self._record(job, done=status == 0)
        if status == 0:
            job.position += 1
            return
        job.failed = True
        failures.append(failure(job, self._directory / job.step.log, status))
        if not self._goes_on:
            raise SystemExit(failures[-1])
        self._console.say(failures[-1])

    def _record(self, job: Job, done: bool) -> None:
        step, path = job.step, record_file(self._directory, job.step.log)
        seconds = time.monotonic() - job.started
        after = runs_before(job, job.position, self._directory)
        run = secrets.token_hex(4) if done else ""
        origin = job.origins[job.position]
        record = Record(step.command, step.budget, origin, seconds, done, run, after, step.inputs)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, durable=False) as temporary:
            temporary.write_text(json.dumps(record._asdict(), indent=2) + "\n", encoding="utf-8")


def wait_for_group(process: subprocess.Popen, end: float) -> None:
    """Wait until a process has ended, and what it has started in its group; kill what is left at this time."""
    with suppress(ProcessLookupError):  # nothing is left
        while time.monotonic() < end:
            process.poll()  # so that an ended process is gone
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def is_larger(budget: str, before: str) -> bool:
    """Whether a training goes on under a budget as if it had had it from the beginning: no limit is smaller than
    before, or new, and all other options are the same, such as those of a schedule that ends with the training."""
    now, earlier = (dict(LIMIT.findall(text)) for text in (budget, before))
    others = [LIMIT.sub("", text).split() for text in (budget, before)]
    return others[0] == others[1] and all(
        int(limit) >= float(earlier.get(option, "inf")) for option, limit in now.items()
    )


def failure(job: Job, log: Path, status: int) -> str:
    """The message about a step that failed, with the end of its log."""
    tail = tail_of(log).splitlines()[-TAIL_LINES:]
    return "\n".join(
        ["", *tail, f"error: {job.name}: {job.step.what} failed with status {status}; its output is in {log}"]
    )
