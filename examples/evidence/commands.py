"""The commands of a plan, as a user would type them in the folder of the experiments, and the files that they make."""

from __future__ import annotations

import shlex
from pathlib import Path
from string import Template
from typing import Dict, List, NamedTuple, Optional, Sequence

from evidence.plan import Corpus, Plan, System, slug
from fairseq_ctxgates.errors import UserError
from runner import Job, Step, has_run

EXAMPLES = Path(__file__).resolve().parent.parent
SPLITS = ("train", "valid", "test")
USER_DIR = '--user-dir "$(ctxgates user-dir)" --task context_translation'
BEST = "checkpoint_best.pt"
COMPARISON = "compare.json"
# The fairseq that runs here logs a line of JSON for each report, which the table and the curves are made of.
LOGGING = "--log-format json --log-interval 50 --no-epoch-checkpoints"


def corpus_folder(name: str) -> str:
    """The folder of a corpus."""
    return f"corpora/{slug(name)}"


def system_folder(part: str, seed: int, row: str = "") -> str:
    """The folder of a system or of a row of the table; without it, that of all systems of a seed."""
    return "/".join([slug(part), f"seed{seed}", *([slug(row)] if row else [])])


def fill(text: str, where: str, names: Dict[str, str]) -> str:
    """A command of a plan with its names filled in.

    Raises:
        UserError: a name is not known there
    """
    try:
        return Template(text).substitute(names)
    except (KeyError, ValueError) as error:
        known = ", ".join(f"${name}" for name in names)
        raise UserError(
            f"{where}: {text!r} has an unknown name ({error}); known are {known}, and $$ is a dollar"
        ) from error


class CorpusCommands:
    """The commands that make a corpus ready, and the names of its files.

    Args:
        texts: the folder of all corpora's text
    """

    def __init__(self, name: str, corpus: Corpus, texts: Path) -> None:
        self._name, self._corpus, self._texts = name, corpus, texts
        self._folder = corpus_folder(name)
        self.source, self.target = corpus.pair
        self.data = f"{self._folder}/data-bin -s {self.source} -t {self.target}"
        self.reference = f"{self._folder}/text/test.{self.target}"
        # What commands of the plan may name.
        self.names = {
            "corpus": self._folder,
            "data": self.data,
            "text": f"{self._folder}/text",
            "reference": self.reference,
            "scoring": corpus.scoring,
            "examples": shlex.quote(str(EXAMPLES)),
        }

    def job(self) -> Job:
        """All steps, from text to side streams.

        Raises:
            UserError: there is no such text
        """
        steps = {"text": self._text()}
        if self._corpus.tokenizer == "moses":
            steps["tokenizing"] = self._tokenizing()
        if self._corpus.bpe:
            steps["BPE"] = self._bpe()
        steps["binarizing"] = self._binarizing()
        for number, stream in enumerate(self._corpus.streams, start=1):
            steps[f"stream {number}"] = fill(stream, f"corpora.{self._name}.streams", self.names)
        return Job(
            self._name,
            [
                Step(what, command, f"{self._folder}/logs/{slug(what)}.log", keeps_work=True)
                for what, command in steps.items()
            ],
        )

    def _text(self) -> str:
        text = f"{self._folder}/text"
        if self._corpus.make:
            return f"mkdir -p {self._folder}\n" + fill(self._corpus.make, f"corpora.{self._name}.make", self.names)
        lines = [f"mkdir -p {text}"]
        splits = [split for split in SPLITS if split != "test" or not self._corpus.held_out]
        endings = [self.source, self.target, *(["docids"] if self._find("train.docids") else [])]
        for split in splits:
            for ending in endings:
                file = self._find(f"{split}.{ending}")
                if file is None:
                    path = self._texts / self._corpus.text / f"{split}.{ending}"
                    raise UserError(f"{path} (or .gz) not found: name the folder of the corpora by --texts")
                first = f" | head -n {self._corpus.first}" if self._corpus.first and split == "train" else ""
                lines.append(f"gzip -dcf {shlex.quote(str(file))}{first} > {text}/{split}.{ending}")
        for ending in endings if self._corpus.held_out else []:
            train = f"{text}/train.{ending}"
            lines.append(f"tail -n {self._corpus.held_out} {train} > {text}/test.{ending}")
            lines.append(f"head -n -{self._corpus.held_out} {train} > {train}.part && mv {train}.part {train}")
        return "\n".join(lines)

    def _find(self, name: str) -> Optional[Path]:
        folder = self._texts / self._corpus.text
        return next((path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None)

    def _tokenizing(self) -> str:
        return "\n".join(
            f"sacremoses -l {language} tokenize -x < {self._folder}/text/{split}.{language} "
            f"> {self._folder}/text/{split}.tok.{language}"
            for split in SPLITS
            for language in (self.source, self.target)
        )

    @property
    def _tokens(self) -> str:
        return f"{self._folder}/text/%s.tok" if self._corpus.tokenizer == "moses" else f"{self._folder}/text/%s"

    def _bpe(self) -> str:
        folder, languages = self._folder, (self.source, self.target)
        train = self._tokens % "train"
        lines = [
            f"subword-nmt learn-joint-bpe-and-vocab -s {self._corpus.bpe} -o {folder}/codes "
            f"--input {' '.join(f'{train}.{language}' for language in languages)} "
            f"--write-vocabulary {' '.join(f'{folder}/vocabulary.{language}' for language in languages)}"
        ]
        for split in SPLITS:
            for language in languages:
                lines.append(
                    f"subword-nmt apply-bpe -c {folder}/codes --vocabulary {folder}/vocabulary.{language} "
                    f"--vocabulary-threshold 1 < {self._tokens % split}.{language} > {folder}/{split}.bpe.{language}"
                )
        return "\n".join(lines)

    def _binarizing(self) -> str:
        read = f"{self._folder}/%s.bpe" if self._corpus.bpe else self._tokens
        words = f"--nwordssrc {self._corpus.words} --nwordstgt {self._corpus.words}"
        prefixes = " ".join(f"--{split}pref {read % split}" for split in SPLITS)
        return (
            f"fairseq-preprocess -s {self.source} -t {self.target} --destdir {self._folder}/data-bin {prefixes} "
            f"{'--joined-dictionary' if self._corpus.bpe else words}"
        )

    def translations(self, generated: str, to: str) -> str:
        """The command that takes the translations, in the order of the text, from what fairseq-generate printed."""
        detokenized = f" | sacremoses -l {self.target} detokenize" if self._corpus.tokenizer == "moses" else ""
        return f"grep '^D-' {generated} | sort -t- -k2 -n | cut -f3{detokenized} > {to}"


class MoreOptions(NamedTuple):
    """Options for all parts: more of fairseq-train and fairseq-generate, and a budget in place of the parts'."""

    train: str = ""
    budget: str = ""
    generate: str = ""


class PartCommands:
    """The jobs of a part of a plan.

    Attributes:
        name: of the part
        corpus: of the part
    """

    def __init__(self, name: str, plan: Plan, corpus: CorpusCommands, more: MoreOptions) -> None:
        self.name, self.corpus = name, corpus
        self._plan, self._part, self._more = plan, plan.parts[name], more

    def jobs(self, seed: int, data: Sequence[Job] = ()) -> List[Job]:
        """The jobs of a seed: a training for each system, after the one that it starts from, then the comparison.

        Args:
            data: the jobs of the part's corpus
        """
        systems: Dict[str, Job] = {}
        for name, system in self._part.systems.items():
            start = [systems[system.starts_from]] if system.starts_from else []
            systems[name] = self._system(name, system, seed, [*data, *start])
        scored = [job for name, job in systems.items() if self._part.systems[name].is_scored]
        return [*systems.values(), self._comparison(seed, scored)]

    def is_finished(self, seed: int, directory: Path) -> bool:
        """Whether a seed's systems were trained, translated, measured and compared as the plan now has it."""
        *systems, comparison = self.jobs(seed)
        steps = [*(step for job in systems for step in job.steps), comparison.steps[0]]
        return all(has_run(step, directory) for step in steps)

    def _system(self, name: str, system: System, seed: int, after: Sequence[Job]) -> Job:
        folder = system_folder(self.name, seed, name)
        steps = [
            Step(
                "training",
                self._training(system, seed, folder),
                f"{folder}/train.log",
                budget=system.budget or self._more.budget or self._part.budget,
                keeps_work=True,
            )
        ]
        if system.is_scored:
            steps += [self._translating(folder, system_folder(self.name, seed, name), "")]
            for variant, options in system.variants.items():
                steps.append(self._translating(folder, system_folder(self.name, seed, variant), options))
        for measure in system.measures:
            names = {**self.corpus.names, "checkpoint": f"{folder}/{BEST}", "folder": folder}
            command = fill(self._plan.measures[measure].command, f"measures.{measure}.command", names)
            steps.append(
                Step(measure, f"{command} --json {folder}/{slug(measure)}.json", f"{folder}/{slug(measure)}.log")
            )
        return Job(f"{self.name}, {name}, seed {seed}", steps, after)

    def _training(self, system: System, seed: int, folder: str) -> str:
        start = (
            f"--warm-start {system_folder(self.name, seed, system.starts_from)}/{BEST}" if system.starts_from else ""
        )
        words = [f"fairseq-train {self.corpus.data} {USER_DIR}", self._part.train, system.train, start]
        words += [f"--seed {seed} --save-dir {folder} {LOGGING}", self._more.train]
        return _join(words)

    def _translating(self, system: str, row: str, options: str) -> Step:
        words = [f"fairseq-generate {self.corpus.data} {USER_DIR} --path {system}/{BEST} --remove-bpe"]
        words += [self._part.generate, options, self._more.generate, f"> {row}/generated.txt"]
        lines = [f"mkdir -p {row}", _join(words)]
        lines.append(self.corpus.translations(f"{row}/generated.txt", f"{row}/test.{self.corpus.target}"))
        return Step("translating", "\n".join(lines), f"{row}/generate.log")

    def _comparison(self, seed: int, after: Sequence[Job]) -> Job:
        folder = system_folder(self.name, seed)
        scored = [name for name, system in self._part.systems.items() if system.is_scored]
        names = {
            **self.corpus.names,
            "checkpoints": " ".join(f"{system_folder(self.name, seed, name)}/{BEST}" for name in scored),
            "translations": " ".join(self.translations(seed, row) for row in self._part.rows),
            "folder": folder,
        }
        compare = "ctxgates analyze compare --ref $reference --sys $translations $scoring --names "
        compare += " ".join(map(shlex.quote, self._part.rows))
        analyses = {"comparing": f"{compare} --json $folder/{COMPARISON}", **self._part.analyses}
        steps = [
            Step(name, fill(command, f"parts.{self.name}.analyses.{name}", names), f"{folder}/{slug(name)}.txt")
            for name, command in analyses.items()
        ]
        return Job(f"{self.name}, seed {seed}", steps, after)

    def translations(self, seed: int, row: str) -> str:
        """The file of a row's translations."""
        return f"{system_folder(self.name, seed, row)}/test.{self.corpus.target}"


def _join(words: Sequence[str]) -> str:
    return " ".join(word for word in words if word)
