"""The commands of a plan, as a user would type them in the folder of the experiments, and the files that they make."""

from __future__ import annotations

import shlex
from pathlib import Path
from string import Template
from typing import Dict, List, NamedTuple, Optional, Sequence

from evidence.plan import Corpus, Plan, System
from fairseq_ctxgates.data.data_directory import digest_of
from fairseq_ctxgates.errors import UserError
from runner import Job, Step, has_run, slug

# Shell variables: the folder that contains the folders of the corpora, and the folder of the examples. The commands use
# these variables, so that the commands are the same wherever the folders are.
TEXTS, EXAMPLES = "TEXTS", "EXAMPLES"
SPLITS = ("train", "valid", "test")
USER_DIR = '--user-dir "$(ctxgates user-dir)" --task context_translation'
BEST = "checkpoint_best.pt"
COMPARISON = "compare.json"
# fairseq logs a line of JSON for each report; the table and the curves are made from these lines.
LOGGING = "--log-format json --log-interval 50 --no-epoch-checkpoints"


def corpus_folder(name: str) -> str:
    """The folder of a corpus."""
    return f"corpora/{slug(name)}"


def system_folder(part: str, seed: int, row: str = "") -> str:
    """The folder of a system or of a row of the table; without ``row``, that of all systems of a seed."""
    return "/".join([slug(part), f"seed{seed}", *([slug(row)] if row else [])])


def fill(text: str, where: str, names: Dict[str, str]) -> str:
    """A command of a plan with its names filled in.

    Raises:
        UserError: a name is not known
    """
    try:
        return Template(text).substitute(names)
    except (KeyError, ValueError) as error:
        known = ", ".join(f"${name}" for name in names)
        raise UserError(
            f"{where}: {text!r} has an unknown name ({error}); known are {known}, and $$ is a dollar"
        ) from error


class CorpusCommands:
    """The commands that prepare a corpus, and the names of its files.

    Args:
        name: the name of the corpus
        texts: the folder that contains the folders of the corpora
    """

    def __init__(self, name: str, corpus: Corpus, texts: Path) -> None:
        self._name, self._corpus, self._texts = name, corpus, texts
        self._folder = corpus_folder(name)
        self.source, self.target = corpus.pair
        self.data = f"{self._folder}/data-bin -s {self.source} -t {self.target}"
        self.reference = f"{self._folder}/text/test.{self.target}"
        # The names that commands of the plan may use.
        self.names = {
            "corpus": self._folder,
            "data": self.data,
            "text": f"{self._folder}/text",
            "reference": self.reference,
            "scoring": corpus.scoring,
            "examples": f'"${EXAMPLES}"',
        }
        self.job = self._job()

    def _job(self) -> Job:
        """All steps, from text to side streams."""
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
                Step(
                    what,
                    command,
                    f"{self._folder}/{slug(what)}.log",
                    keeps_work=True,
                    inputs=self._texts_digest() if what == "text" else "",
                )
                for what, command in steps.items()
            ],
        )

    def _text(self) -> str:
        text = f"{self._folder}/text"
        if self._corpus.make:
            return f"mkdir -p {self._folder}\n" + fill(self._corpus.make, f"corpora.{self._name}.make", self.names)
        lines = [f"mkdir -p {text}"]
        for name in self._files:
            # gzip reads NAME.gz if there is no file NAME, and copies text that is not compressed. It is not in a pipe,
            # where its failure would pass unnoticed.
            lines.append(f'gzip -dcf "${TEXTS}"/{self._corpus.text}/{name} > {text}/{name}')
            if self._corpus.first and name.startswith("train."):
                lines.append(f"head -n {self._corpus.first} {text}/{name} > {text}/{name}.part")
                lines.append(f"mv {text}/{name}.part {text}/{name}")
        for ending in self._endings if self._corpus.held_out else []:
            train = f"{text}/train.{ending}"
            lines.append(f"tail -n {self._corpus.held_out} {train} > {text}/test.{ending}")
            lines.append(f"head -n -{self._corpus.held_out} {train} > {train}.part")
            lines.append(f"mv {train}.part {train}")
        return "\n".join(lines)

    @property
    def _endings(self) -> List[str]:
        return [self.source, self.target, *(["docids"] if self._corpus.documents else [])]

    @property
    def _files(self) -> List[str]:
        splits = [split for split in SPLITS if split != "test" or not self._corpus.held_out]
        return [f"{split}.{ending}" for split in splits for ending in self._endings]

    def check_texts(self, directory: Path) -> None:
        """Raise UserError if a text is still to be read and one of its files is missing."""
        if self._corpus.make or has_run(self.job, 0, directory):
            return
        for path, found in self._text_files().items():
            if found is None:
                raise UserError(f"{path} (or .gz) not found: name the folder of the corpora by --texts")

    def _text_files(self) -> Dict[Path, Optional[Path]]:
        """The file of each text, or its file ``.gz``; None if there is neither."""
        paths = [self._texts / self._corpus.text / name for name in self._files]
        return {path: next(filter(Path.exists, (path, Path(f"{path}.gz"))), None) for path in paths}

    def _texts_digest(self) -> str:
        """A digest of the files of the text; empty if the corpus has none, or if they are not here."""
        files = [] if self._corpus.make else [found for found in self._text_files().values() if found is not None]
        return digest_of(*files) if len(files) == len(self._files) else ""

    def _tokenizing(self) -> str:
        return "\n".join(
            f"sacremoses -l {language} tokenize < {self._folder}/text/{split}.{language} "
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
            # fairseq-preprocess does not go on where it was interrupted.
            f"rm -rf {self._folder}/data-bin\n"
            f"fairseq-preprocess -s {self.source} -t {self.target} --destdir {self._folder}/data-bin {prefixes} "
            f"{'--joined-dictionary' if self._corpus.bpe else words}"
        )

    def translations(self, generated: str, to: str) -> str:
        """The command that takes the translations, in the order of the text, from the output of fairseq-generate."""
        return f"grep '^D-' {generated} | sort -t- -k2 -n | cut -f3{self._detokenizing()} > {to}"

    def _detokenizing(self) -> str:
        """The end of a pipe that turns tokens into text."""
        if self._corpus.tokenizer == "none":
            return ""
        # sacremoses joins l'article again, but not l’article, without which perfect French has 74 BLEU on laws.
        elision = " | sed 's/ ’ /’/g'" if self.target in ("fr", "it") else ""
        return f" | sacremoses -l {self.target} detokenize{elision}"


class MoreOptions(NamedTuple):
    """Options for all parts: further ones of fairseq-train and fairseq-generate, and a budget that replaces the
    parts'."""

    train: str = ""
    budget: str = ""
    generate: str = ""


class PartCommands:
    """The jobs of a part of a plan.

    Attributes:
        name: the name of the part
        corpus: the commands of its corpus
    """

    def __init__(self, name: str, plan: Plan, corpus: CorpusCommands, more: MoreOptions) -> None:
        self.name, self.corpus = name, corpus
        self._plan, self._part, self._more = plan, plan.parts[name], more

    def jobs(self, seed: int) -> List[Job]:
        """The jobs of a seed: for each system, its training (after that of the system that it starts from) and what is
        done with the model; then the comparison."""
        trainings: Dict[str, Job] = {}
        jobs = []
        for name, system in self._part.systems.items():
            start = [trainings[system.starts_from]] if system.starts_from else []
            trainings[name] = self._training(name, system, seed, [self.corpus.job, *start])
            jobs += [trainings[name], *self._evaluation(name, system, seed, trainings[name])]
        evaluations = [job for job in jobs if job not in trainings.values()]
        return [*jobs, self._comparison(seed, evaluations)]

    def is_finished(self, seed: int, directory: Path) -> bool:
        """Whether a seed's systems were trained, translated, measured and compared as the plan now says."""
        *systems, comparison = self.jobs(seed)
        has_all = all(has_run(job, place, directory) for job in systems for place in range(len(job.steps)))
        return has_all and has_run(comparison, 0, directory)

    def _training(self, name: str, system: System, seed: int, after: Sequence[Job]) -> Job:
        folder = system_folder(self.name, seed, name)
        start = (
            f"--warm-start {system_folder(self.name, seed, system.starts_from)}/{BEST}" if system.starts_from else ""
        )
        words = [f"fairseq-train {self.corpus.data} {USER_DIR}", self._part.train, system.train, start]
        words += [f"--seed {seed} --save-dir {folder} {LOGGING}", self._more.train]
        budget = system.budget or self._more.budget or self._part.budget
        step = Step("training", _join(words), f"{folder}/train.log", budget, keeps_work=True)
        return Job(f"{self.name}, {name}, seed {seed}", [step], after)

    def _evaluation(self, name: str, system: System, seed: int, training: Job) -> List[Job]:
        """Translations and measures of a scored system."""
        if not system.is_scored:
            return []
        folder = system_folder(self.name, seed, name)
        steps = [self._translating(folder, folder, "")]
        for variant, options in system.variants.items():
            steps.append(self._translating(folder, system_folder(self.name, seed, variant), options))
        for measure in system.measures:
            names = {**self.corpus.names, "checkpoint": f"{folder}/{BEST}", "folder": folder}
            command = fill(self._plan.measures[measure].command, f"measures.{measure}.command", names)
            file = f"{folder}/{slug(measure)}"
            steps.append(Step(measure, f"{command} --json {file}.json", f"{file}.log"))
        return [Job(training.name, steps, [training])]

    def _translating(self, system: str, row: str, options: str) -> Step:
        words = [f"fairseq-generate {self.corpus.data} {USER_DIR} --path {system}/{BEST} --remove-bpe"]
        words += [self._part.generate, options, self._more.generate, f"> {row}/generated.txt"]
        lines = [f"mkdir -p {row}", _join(words)]
        lines.append(self.corpus.translations(f"{row}/generated.txt", f"{row}/test.{self.corpus.target}"))
        return Step("translating", "\n".join(lines), f"{row}/generate.log")

    def _comparison(self, seed: int, after: Sequence[Job]) -> Job:
        folder = system_folder(self.name, seed)
        names = {
            **self.corpus.names,
            "checkpoints": " ".join(f"{system_folder(self.name, seed, name)}/{BEST}" for name in self._part.scored),
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
