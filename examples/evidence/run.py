"""Runs the experiments of a plan: prepares corpora, trains, translates, measures and compares systems, and prints a
table for each part.

``python examples/evidence/run.py examples/evidence/plans/smoke.yaml``

It prints each command as a user would type it in the folder of the experiments. What has been done is not done again,
and an interrupted training goes on from its last checkpoint, so the same command goes on where it was stopped. Seeds
that are not finished are not reported. Each part's table is kept in its folder as ``table.txt``, ``table.csv`` and
``table.json``, with the learning curves in ``curves.png``.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import shlex
import sys
from pathlib import Path
from typing import List, Optional, Sequence

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from evidence.commands import EXAMPLES, TEXTS, CorpusCommands, MoreOptions, PartCommands  # noqa: E402 (it is one folder up)
from evidence.plan import Plan, read_plan  # noqa: E402
from evidence.table import PartResults  # noqa: E402
from fairseq_ctxgates.analysis.report import write_whole  # noqa: E402
from fairseq_ctxgates.command_line import positive  # noqa: E402
from fairseq_ctxgates.errors import UserError, exit_on_user_error  # noqa: E402
from fairseq_ctxgates.locks import exclusive  # noqa: E402
from runner import Console, Job, Runner, slug  # noqa: E402

JOBS_ON_GPU = 4


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Run the experiments of a plan.")
    parser.add_argument("plan", type=Path, help="a YAML file, such as those in examples/evidence/plans")
    parser.add_argument(
        "--texts", type=Path, default=Path(), metavar="DIR", help="folder with the corpora's folders (default: .)"
    )
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="where everything is made (default: evidence/<name of the plan>)"
    )
    parser.add_argument(
        "--parts", action="extend", nargs="+", metavar="NAME", help="only these parts of the plan (default: all)"
    )
    parser.add_argument(
        "--systems",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="only these systems of the parts, and those that they start from",
    )
    parser.add_argument(
        "--seeds", action="extend", nargs="+", type=int, metavar="N", help="these seeds in place of the plan's"
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        default=None if torch.cuda.is_available() else os.cpu_count(),
        metavar="N",
        help="how many trainings run at once, each with one thread (default: the number of processors; on a GPU "
        f"{JOBS_ON_GPU})",
    )
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="stop after this time; the same command goes on later"
    )
    parser.add_argument("--budget", default="", metavar="OPTIONS", help="replaces the parts' budgets; in quotes")
    parser.add_argument("--train", default="", metavar="OPTIONS", help="more fairseq-train options, in quotes")
    parser.add_argument("--generate", default="", metavar="OPTIONS", help="more fairseq-generate options, in quotes")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--prepare", action="store_true", help="only prepare the corpora")
    only.add_argument("--dry-run", action="store_true", help="only print the commands")
    return parser


def directory_of(args: argparse.Namespace) -> Path:
    """Where everything is made."""
    directory: Path = args.directory or Path("evidence", args.plan.stem)
    return directory.resolve()


class Experiments:
    """The parts of a plan that are run."""

    def __init__(self, plan: Plan, args: argparse.Namespace) -> None:
        self._plan, self._args = plan, args
        self._directory = directory_of(args)
        wanted = [part.corpus for part in plan.parts.values()] if plan.parts else list(plan.corpora)
        texts = args.texts.resolve()
        self._corpora = {name: CorpusCommands(name, plan.corpora[name], texts) for name in dict.fromkeys(wanted)}
        more = MoreOptions(args.train, args.budget, args.generate)
        self._parts = {
            name: PartCommands(name, plan, self._corpora[part.corpus], more) for name, part in plan.parts.items()
        }

    def jobs(self) -> List[Job]:
        """The corpora, then the parts."""
        jobs = [corpus.job for corpus in self._corpora.values()]
        if not self._args.prepare:
            for name, part in self._parts.items():
                for seed in dict.fromkeys(self._args.seeds or self._plan.parts[name].seeds):
                    jobs += part.jobs(seed)
        return jobs

    def check_texts(self) -> None:
        """Raise UserError if a text that is still to be read is missing."""
        for corpus in self._corpora.values():
            corpus.check_texts(self._directory)

    def report(self, console: Console) -> None:
        """Print and keep the table of each part that has a finished seed. If a part has none, its table of an earlier
        plan or budget is put aside.

        Raises:
            UserError: some part has no table, which is said at once; the others have theirs.
        """
        failed = []
        for name, part in self._parts.items():
            try:
                self._report_part(name, part, console)
            except UserError as error:
                console.say(f"\n{name}: {error}")
                failed.append(name)
        if failed:
            raise UserError(f"no table could be made of {', '.join(failed)}; the reasons are above")

    def _report_part(self, name: str, part: PartCommands, console: Console) -> None:
        folder = self._directory / slug(name)
        results = PartResults(part, self._plan, self._seeds(name), self._directory)
        files = {"json": folder / "table.json", "csv": folder / "table.csv", "figure": folder / "curves.png"}
        if not results.seeds:
            console.say(f"\n{name}: no seed is finished")
            for path in filter(Path.exists, (folder / "table.txt", *files.values())):
                path.replace(path.with_name(f"earlier-{path.name}"))
            return
        result = results.result()
        console.say(f"\n{result.text()}")
        write_whole(folder / "table.txt", f"{result.text()}\n".encode())
        result.write(argparse.Namespace(**files))

    def _seeds(self, part: str) -> List[int]:
        """The plan's seeds and all seeds that were ever begun."""
        folders = (self._directory / slug(part)).glob("seed*")
        begun = (int(folder.name[len("seed") :]) for folder in folders if folder.name[len("seed") :].isdecimal())
        return sorted({*self._plan.parts[part].seeds, *begun})


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the plan and print its tables.

    Raises:
        UserError: the plan or a corpus cannot be read
        SystemExit: a command failed, or as :meth:`Runner.check`
    """
    args = get_parser().parse_args(argv)
    logging.getLogger().setLevel(logging.WARNING)  # importing fairseq sets it to INFO or DEBUG
    experiments = Experiments(read_plan(args.plan).only(args.parts or [], args.systems or []), args)
    console = Console()
    directory = directory_of(args)
    environment = {TEXTS: str(args.texts.resolve()), EXAMPLES: str(HERE.parent)}
    beginning = [f"cd {shlex.quote(str(directory))}"]
    beginning += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    jobs = experiments.jobs()
    if args.dry_run:
        for line in [f"mkdir -p {shlex.quote(str(directory))}", *beginning]:
            console.say(line)
        for job in jobs:
            for step in job.steps:
                console.say(step.shell_command)
        return
    experiments.check_texts()
    directory.mkdir(parents=True, exist_ok=True)
    if torch.cuda.device_count() > 1:
        environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    runner = Runner(
        directory,
        console,
        environment,
        at_once=args.jobs or JOBS_ON_GPU,
        goes_on=True,
        seconds=math.inf if args.minutes is None else 60 * args.minutes,
    )
    with exclusive(directory / ".lock", f"another run writes to {directory}"):
        for line in beginning:
            console.say(f"$ {line}")
        runner.check(jobs)
        try:
            if not runner.run(jobs):
                console.say(f"stopped after {console.seconds:.0f} s; the same command goes on")
        finally:
            if not args.prepare:
                experiments.report(console)


if __name__ == "__main__":
    with exit_on_user_error():
        main()
