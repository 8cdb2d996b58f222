"""The examples' runner of shell commands: order, failures, and that an interrupted run goes on where it was."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pytest

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write
from runner import Console, Job, Record, Runner, Step, has_run, is_larger, progress_of, read_record, record_file
from tests.helpers.processes import is_running, wait_until

pytestmark = pytest.mark.process


def run_jobs(directory: Path, *jobs: Job, **options: Any) -> str:
    """Run the jobs to their end; what was printed."""
    output = io.StringIO()
    assert Runner(directory, Console(output), **options).run(jobs)
    return output.getvalue()


def record_of(directory: Path, step: Step) -> Record:
    record = read_record(directory, step.log)
    assert record is not None
    return record


class Limited(Console):
    """The time is over when this holds."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        super().__init__(io.StringIO())
        self._is_over = is_over

    @property
    def seconds(self) -> float:
        return float(self._is_over())


def step(command: str, log: str = "a.log", **options: Any) -> Step:
    return Step("working", command, log, **options)


def test_steps_run_in_order_in_the_directory(tmp_path: Path) -> None:
    output = run_jobs(tmp_path, Job("data", [step("echo 1 > file"), step("cat file\nls", "logs/b.log")]))
    assert (tmp_path / "logs/b.log").read_text().split() == ["1", "a.log", "a.log.json", "file", "logs"]
    assert output.splitlines()[:3] == ["$ echo 1 > file", "$ cat file", "$ ls"]


def test_python_is_the_one_that_runs_the_jobs(tmp_path: Path) -> None:
    run_jobs(tmp_path, Job("data", [step('python -c "import sys; print(sys.prefix)"')]))
    assert (tmp_path / "a.log").read_text().strip() == sys.prefix


def test_variables_and_one_thread(tmp_path: Path) -> None:
    run_jobs(tmp_path, Job("data", [step("echo $OMP_NUM_THREADS $MORE")]), environment={"MORE": "more"})
    assert (tmp_path / "a.log").read_text() == "1 more\n"


def test_a_step_that_fails_ends_everything_and_shows_why(tmp_path: Path) -> None:
    failing = Job("first", [step("until test -s pid; do sleep 0.05; done\necho the reason\nfalse\necho not reached")])
    # The shell's own child must end as well.
    waiting = Job("second", [step("sleep 61 & echo $! > pid; wait", "b.log")])
    while_starting = time.monotonic()
    with pytest.raises(SystemExit) as error:
        run_jobs(tmp_path, waiting, failing)
    assert "the reason\nerror: first: working failed with status 1" in str(error.value)
    assert str(tmp_path / "a.log") in str(error.value) and "not reached" not in str(error.value)
    assert waiting.process is not None and waiting.process.poll() is not None
    number = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: not is_running(number))
    assert time.monotonic() - while_starting < 30


def test_a_run_that_goes_on_ends_what_does_not_need_the_failed_job(tmp_path: Path) -> None:
    failing = Job("failing", [step("false")])
    needing = Job("needing", [step("touch needing", "b.log")], [failing])
    other = Job("other", [step("sleep 1; touch other", "c.log")])
    with pytest.raises(SystemExit, match="failing: working failed with status 1"):
        run_jobs(tmp_path, failing, needing, other, goes_on=True)
    assert (tmp_path / "other").exists() and not (tmp_path / "needing").exists()


def test_a_job_waits_for_those_that_it_needs(tmp_path: Path) -> None:
    first = Job("first", [step("sleep 0.5; echo 1 >> file")])
    second = Job("second", [step("echo 2 >> file", "b.log")], [first])
    run_jobs(tmp_path, first, second)
    assert (tmp_path / "file").read_text() == "1\n2\n"


def test_only_so_many_run_at_once(tmp_path: Path) -> None:
    busy = "test ! -e busy; touch busy; sleep 0.5; rm busy"
    run_jobs(tmp_path, *(Job(name, [step(busy, name)]) for name in "abc"), at_once=1)
    assert all(record_of(tmp_path, step(busy, name)).done for name in "abc")  # none met a busy one


def test_what_has_run_is_not_run_again(tmp_path: Path) -> None:
    def jobs() -> Job:
        return Job("data", [step("echo 1 >> file"), step("echo 2 >> file", "b.log")])

    run_jobs(tmp_path, jobs())
    assert run_jobs(tmp_path, jobs()) == ""
    assert (tmp_path / "file").read_text() == "1\n2\n"


def test_the_log_is_of_the_last_run_unless_work_is_kept(tmp_path: Path) -> None:
    """The log of an analysis is its result."""
    for number in (1, 2):
        run_jobs(tmp_path, Job("analysis", [step(f"echo {number}")]))
    assert (tmp_path / "a.log").read_text() == "2\n"


def test_what_reads_the_files_of_a_changed_step_runs_again(tmp_path: Path) -> None:
    def jobs(number: int) -> tuple[Job, Job]:
        first = Job("first", [step(f"echo {number} > file"), step("cat file > copy", "b.log")])
        return first, Job("second", [step("cat copy >> all", "c.log")], [first])

    run_jobs(tmp_path, *jobs(1))
    run_jobs(tmp_path, *jobs(2))
    run_jobs(tmp_path, *jobs(2))
    assert (tmp_path / "all").read_text() == "1\n2\n"


def test_what_reads_the_files_of_a_step_that_ran_anew_runs_again(tmp_path: Path) -> None:
    def jobs() -> tuple[Job, Job]:
        first = Job("first", [step("date +%N > file"), step("cp file copy", "b.log")])
        return first, Job("second", [step("cp copy end", "c.log")], [first])

    run_jobs(tmp_path, *jobs())
    made = (tmp_path / "end").read_text()
    (tmp_path / "a.log.json").unlink()
    assert not has_run(jobs()[0], 1, tmp_path)
    run_jobs(tmp_path, *jobs())
    assert made != (tmp_path / "end").read_text() == (tmp_path / "file").read_text()
    assert run_jobs(tmp_path, *jobs()) == ""


def test_work_that_is_kept_is_not_that_of_what_was_made_anew(tmp_path: Path) -> None:
    def jobs() -> tuple[Job, Job]:
        data = Job("data", [step("date > data")])
        return data, Job("system", [step("cp data model", "b.log", keeps_work=True)], [data])

    run_jobs(tmp_path, *jobs())
    assert run_jobs(tmp_path, *jobs()) == ""
    (tmp_path / "a.log.json").unlink()
    with pytest.raises(SystemExit, match="system: working was begun before what it reads was made anew.\nRemove"):
        run_jobs(tmp_path, *jobs())


def test_what_follows_runs_again_also_if_the_run_ended_between(tmp_path: Path) -> None:
    """A training with a larger budget is done, and the process was killed before the model was used."""

    def job(budget: str) -> Job:
        model = step("echo", "model", budget=budget, keeps_work=True)
        return Job("system", [model, step("tail -n 1 model >> used", "b.log")])

    first, second = job("--max-epoch 1"), job("--max-epoch 2")
    run_jobs(tmp_path, first)
    run_jobs(tmp_path, Job("system", second.steps[:1]))
    assert not has_run(second, 1, tmp_path)
    run_jobs(tmp_path, job("--max-epoch 2"))
    assert (tmp_path / "used").read_text() == "--max-epoch 1\n--max-epoch 2\n"


def test_a_step_that_was_killed_is_not_done(tmp_path: Path) -> None:
    job = Job("data", [step("test -e file || { touch file; kill -KILL $$; }")])
    with pytest.raises(SystemExit, match="failed with status 137"):
        run_jobs(tmp_path, job)
    assert not record_of(tmp_path, job.step).done
    run_jobs(tmp_path, Job("data", job.steps))
    assert record_of(tmp_path, job.step).done


def test_work_of_another_command_is_kept(tmp_path: Path) -> None:
    run_jobs(tmp_path, Job("model", [step("echo 1 > model", "models/a.log", keeps_work=True)]))
    other = Job("model", [step("echo 2 > model", "models/a.log", keeps_work=True)])
    with pytest.raises(SystemExit, match=r"(?s)model: working was begun by\n.*echo 2 > model\.\nRemove .*models"):
        run_jobs(tmp_path, Job("before", [step("touch before", "b.log")]), other)
    assert (tmp_path / "model").read_text() == "1\n" and not (tmp_path / "before").exists()


def test_work_on_other_data_is_kept(tmp_path: Path) -> None:
    def jobs(number: int) -> tuple[Job, Job]:
        data = Job("data", [step(f"echo {number} > data")])
        return data, Job("model", [step("cp data model", "models/a.log", keeps_work=True)], [data])

    run_jobs(tmp_path, *jobs(1))
    with pytest.raises(SystemExit, match="model: working was begun after other commands than those that would now run"):
        run_jobs(tmp_path, *jobs(2))
    assert (tmp_path / "data").read_text() == "1\n"


@pytest.mark.parametrize(
    ("budget", "before", "expected"),
    [
        ("--max-epoch 8 --patience 3", "--max-epoch=5 --patience 3", True),
        ("--max-epoch 5 --patience 4", "--max-epoch 5 --patience 3", True),
        ("--max-epoch 5", "--max-epoch 5 --patience 3", True),
        ("--max-epoch 5 --patience 3", "--max-epoch 5", False),
        ("--max-epoch 8 --total-num-update 2000", "--max-epoch 8 --total-num-update 5784", False),
        ("--max-epoch 8 --total-num-update 5784", "--max-epoch 4 --total-num-update 5784", True),
        ("--max-update 9 --lr 1", "--max-update 9", False),
    ],
)
def test_which_budget_a_training_goes_on_with(budget: str, before: str, expected: bool) -> None:
    """Under another schedule it would be another training."""
    assert is_larger(budget, before) == expected


def test_a_larger_budget_goes_on_and_a_smaller_one_is_refused(tmp_path: Path) -> None:
    for budget in ("--max-epoch 1", "--max-epoch 2", "--max-epoch 2"):
        run_jobs(tmp_path, Job("model", [step("echo", budget=budget, keeps_work=True)]))
    assert (tmp_path / "a.log").read_text() == "--max-epoch 1\n--max-epoch 2\n"
    for budget in ("--max-epoch 1", "--max-update 100", "--max-epoch 3 --max-update 100"):
        with pytest.raises(SystemExit, match=f"has had --max-epoch 2, and {budget} is not the same with higher limits"):
            run_jobs(tmp_path, Job("model", [step("echo", budget=budget, keeps_work=True)]))


def test_work_on_other_files_is_refused(tmp_path: Path) -> None:
    def job(inputs: str) -> Job:
        return Job("data", [step("echo made", "a.log", keeps_work=True, inputs=inputs)])

    for inputs in ("1", "1", ""):  # once without the files, on another machine
        run_jobs(tmp_path, job(inputs))
    assert (tmp_path / "a.log").read_text() == "made\n"
    with pytest.raises(SystemExit, match="data: working was begun with other content of the files that it reads"):
        run_jobs(tmp_path, job("2"))


def test_a_failure_is_reported_when_the_time_is_over_too(tmp_path: Path) -> None:
    jobs = [Job("failing", [step("exit 3", "f.log")]), Job("long", [step("sleep 60", "l.log")])]
    with pytest.raises(SystemExit, match="failing"):
        Runner(tmp_path, Limited(lambda: jobs[0].failed), goes_on=True, seconds=0.5).run(jobs)


def test_the_time_of_an_interrupted_step_counts(tmp_path: Path) -> None:
    work = step("test -e file || { touch file; sleep 60; }", keeps_work=True)
    started, file = time.monotonic(), tmp_path / "file"
    console = Limited(lambda: file.exists() and time.monotonic() - started > 2)
    assert not Runner(tmp_path, console, seconds=0.5).run([Job("model", [work])])
    interrupted = record_of(tmp_path, work)
    assert not interrupted.done and 1 < interrupted.seconds < time.monotonic() - started
    run_jobs(tmp_path, Job("model", [work]))
    done = record_of(tmp_path, work)
    assert done.done and done.seconds > interrupted.seconds


def test_a_signal_stops_everything(tmp_path: Path) -> None:
    job = Job("model", [step(f"sleep 0.5; kill -TERM {os.getpid()}; sleep 60")])
    with pytest.raises(SystemExit) as stopped:
        run_jobs(tmp_path, job)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert job.process is not None and job.process.poll() is not None


def test_what_is_stopped_may_clean_up_first(tmp_path: Path) -> None:
    """The shell ends at once, what it has started later; only then may the same command run again."""
    cleans_up = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.5), sys.exit())); "
    program = f"{cleans_up} open('begun', 'w'); time.sleep(60)"
    job = Job("model", [step(f'{sys.executable} -c "{program}; 1"; true')])
    assert not Runner(tmp_path, Limited((tmp_path / "begun").exists), seconds=0.5).run([job])
    assert job.process is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(job.process.pid, 0)


def test_a_full_disk_is_named_and_stops_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(path: Path, *_: Any, **__: Any) -> Any:
        if begun.exists():
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return atomic_write(path, durable=False)

    begun = tmp_path / "begun"
    monkeypatch.setattr("runner.atomic_write", is_full)
    short = step("until test -e long; do sleep 0.05; done; touch begun", "s.log")
    jobs = [Job("short", [short]), Job("long", [step("touch long; sleep 60", "l.log")])]
    with pytest.raises(UserError, match="No space left on device"):
        run_jobs(tmp_path, *jobs)
    assert jobs[1].process is not None and jobs[1].process.poll() is not None


def test_progress_of_a_training(tmp_path: Path) -> None:
    job = Job("plain", [Step("training", "", "a.log")], updates=100)
    log = tmp_path / "a.log"
    log.write_text("2026-01-01 | INFO | fairseq_cli.train | Start\n")
    assert progress_of(job, tmp_path) == "plain: starting"
    entry = json.dumps({"epoch": 2, "loss": "3.456", "num_updates": "40"})
    log.write_text(f"2026-01-01 | INFO | train_inner | {entry}\n2026-01-01 | INFO | valid | {{}}\n")
    assert progress_of(job, tmp_path) == "plain: epoch 2, 40/100 updates, loss 3.46"
    job.updates = None
    assert progress_of(job, tmp_path) == "plain: epoch 2, 40 updates, loss 3.46"
    job.position = 1
    assert progress_of(job, tmp_path) == "plain: done"


def test_the_time_of_a_step_that_starts_anew_does_not_add_up(tmp_path: Path) -> None:
    record_file(tmp_path, "x.log").write_text(json.dumps(Record("other", "", "", 1000.0, True)._asdict()))
    run_jobs(tmp_path, Job("job", [Step("working", "true", "x.log")]))
    record = read_record(tmp_path, "x.log")
    assert record is not None and record.seconds < 100
