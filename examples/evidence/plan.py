"""A plan of experiments: corpora, the systems trained on them, with which seeds and for how long, and what is measured.

A plan is a YAML file with the keys of :class:`Plan`. In it, ``${options.small}`` is another value of the plan (as in
OmegaConf), and ``$data`` is a name that the runner fills in (as in ``string.Template``). ``$$`` is a dollar sign.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any, Dict, Iterator, List, Literal, NoReturn, Sequence

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from yaml import YAMLError

from fairseq_ctxgates.analysis.systems import add_reference_options
from fairseq_ctxgates.errors import UserError, one_line
from runner import slug


def check_folders(section: str, names: Sequence[str], reserved: Sequence[str]) -> None:
    """Raise ValueError if the names cannot be those of folders or files, or two of them would be the same."""
    seen = set(reserved)
    for name in names:
        if not slug(name) or slug(name) in seen or "$" in name:
            raise ValueError(f"{section}: {name!r} cannot name a folder of its own: use other words")
        seen.add(slug(name))


class Section(BaseModel):
    """A mapping in the plan; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are errors of the plan."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"scoring: {message}")


class Corpus(Section):
    """A parallel corpus, from text to binarized data with side streams.

    Attributes:
        languages: such as ``zh-en``
        text: the folder, below ``--texts``, with ``{train,valid,test}.{zh,en}``, each possibly with ``.gz``
        documents: whether the folder also has ``*.docids``, with the name of each line's document
        make: instead of ``text``, a command that makes such files in the folder ``text``
        first: how many of the first pairs of train are read; 0 for all
        held_out: for a corpus without a test set, how many of the last pairs of train become the test set
        tokenizer: ``none`` for tokenized text; with ``moses``, translations are detokenized before they are scored
        bpe: the number of operations of joint BPE, with one dictionary
        words: instead of ``bpe``, the number of words of each language; all other words are unknown
        streams: the commands that add side streams
        scoring: options for this text, as in ``ctxgates analyze bleu-by-length``: ``--tokenize``, ``--lowercase``,
            ``--remove-bpe``

    ``make``, ``streams`` and the commands below may use $data (the data directory with ``-s`` and ``-t``), $text (the
    folder of the text), $reference (of the test set), $scoring, $corpus (the folder of the whole corpus), and $examples
    (the folder of the examples).
    """

    languages: str = Field(pattern=r"^[^-]+-[^-]+$")
    text: str = ""
    documents: bool = False
    make: str = ""
    first: int = 0
    held_out: int = 0
    tokenizer: Literal["none", "moses"] = "none"
    bpe: int = 0
    words: int = 0
    streams: List[str] = []
    scoring: str = ""

    @model_validator(mode="after")
    def _has_one_of_two(self) -> Corpus:
        for first, second in (("text", "make"), ("bpe", "words")):
            if bool(getattr(self, first)) == bool(getattr(self, second)):
                raise ValueError(f"give one of {first!r} and {second!r}")
        if self.make and (self.first or self.held_out or self.documents):
            raise ValueError("'first', 'held_out' and 'documents' are of 'text', not of 'make'")
        self.scoring_options("reference")
        return self

    def scoring_options(self, reference: object) -> argparse.Namespace:
        """The options of ``scoring``, and a reference; raises ValueError for any other option."""
        parser = _Parser(prog="scoring", add_help=False)
        add_reference_options(parser)
        return parser.parse_args(["--ref", str(reference), *shlex.split(self.scoring)])

    @property
    def pair(self) -> Sequence[str]:
        """The source and the target language."""
        return self.languages.split("-")


class System(Section):
    """A model to train.

    Attributes:
        train: its own options of fairseq-train
        starts_from: an earlier system of the part, whose weights it starts from
        budget: replaces the part's budget
        is_scored: whether it is a row of the table; False for a system that other systems only start from
        variants: options of fairseq-generate, by the name of the row for their translations
        measures: names of measures
    """

    train: str
    starts_from: str = ""
    budget: str = ""
    is_scored: bool = True
    variants: Dict[str, str] = {}
    measures: List[str] = []


class Measure(Section):
    """A statistic of one system.

    Attributes:
        command: writes JSON to the file of its option ``--json``, which the runner adds; it may also use $checkpoint
            and $folder, for further files
        columns: for each heading of a column of the table, the keys to a number in the JSON file, joined by dots
            (``all.mean``)
    """

    command: str
    columns: Dict[str, str] = {}


class Part(Section):
    """Systems that are compared; the first is the baseline.

    Attributes:
        question: the question that the part is to answer
        corpus: the name of its corpus
        seeds: of the trainings; each system is trained with each seed
        train: the options of fairseq-train that all systems have
        budget: how long the systems are trained (``--max-epoch 20 --patience 3``); if it is raised, trainings go on
        generate: options of fairseq-generate
        analyses: commands, by name, that are run for each seed over all scored systems; they may also use $checkpoints,
            $translations, and $folder for their files
    """

    question: str = ""
    corpus: str
    seeds: List[int] = [1]
    train: str = ""
    budget: str
    generate: str = ""
    systems: Dict[str, System]
    analyses: Dict[str, str] = {}

    @property
    def scored(self) -> List[str]:
        """The names of the systems that are scored."""
        return [name for name, system in self.systems.items() if system.is_scored]

    @property
    def rows(self) -> List[str]:
        """The names of the rows of the table: each scored system, followed by its variants."""
        return [row for name in self.scored for row in (name, *self.systems[name].variants)]

    def only(self, systems: Sequence[str]) -> Part:
        """The part with these of its systems and those that they start from, and without the analyses that read files
        of other systems."""
        kept = {name for name in systems if name in self.systems}
        for name in reversed(self.systems):
            if name in kept:
                kept.add(self.systems[name].starts_from)
        left_out = [f"$folder/{slug(name)}/" for name in self.systems if name not in kept]
        analyses = {
            name: command
            for name, command in self.analyses.items()
            if not any(folder in command for folder in left_out)
        }
        chosen = {name: system for name, system in self.systems.items() if name in kept}
        return self.model_copy(update={"systems": chosen, "analyses": analyses})

    @model_validator(mode="after")
    def _systems_fit(self) -> Part:
        if not self.scored:
            raise ValueError("systems: none is scored")
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ValueError("seeds: give each seed once")
        earlier: List[str] = []
        for name, system in self.systems.items():
            if system.starts_from and system.starts_from not in earlier:
                raise ValueError(f"systems.{name}.starts_from: no system {system.starts_from!r} before it")
            if not system.is_scored and (system.variants or system.measures):
                raise ValueError(f"systems.{name}: 'variants' and 'measures' are of a system that is scored")
            earlier.append(name)
        variants = [variant for system in self.systems.values() for variant in system.variants]
        check_folders("systems", [*self.systems, *variants], ())
        check_folders("analyses", list(self.analyses), ["comparing", "compare"])
        return self


class Plan(Section):
    """Everything that one run does.

    Attributes:
        include: plans in the same folder that this one changes or extends
        options: text to use in other values of the plan
    """

    include: List[str] = []
    options: Dict[str, str] = {}
    corpora: Dict[str, Corpus] = {}
    measures: Dict[str, Measure] = {}
    parts: Dict[str, Part] = {}

    def only(self, parts: Sequence[str], systems: Sequence[str]) -> Plan:
        """The plan with only these parts, and with only these of their scored systems; all if none is named.

        Raises:
            UserError: the plan has no such part, or none of the parts has such a system
        """
        for name in parts:
            if name not in self.parts:
                raise UserError(f"the plan has no part {name!r}; its parts are {', '.join(self.parts)}")
        chosen = {name: self.parts[name] for name in parts or self.parts}
        known = dict.fromkeys(system for part in chosen.values() for system in part.scored)
        for system in systems:
            if system not in known:
                raise UserError(f"no part has a system {system!r}; the systems are {', '.join(map(repr, known))}")
        if systems:
            chosen = {name: part.only(systems) for name, part in chosen.items() if {*systems} & {*part.scored}}
        return self.model_copy(update={"parts": chosen})

    @model_validator(mode="after")
    def _names_are_defined(self) -> Plan:
        check_folders("corpora", list(self.corpora), ())
        check_folders("measures", list(self.measures), ["train", "generate", "generated"])
        check_folders("parts", list(self.parts), ["corpora"])
        for name, part in self.parts.items():
            if part.corpus not in self.corpora:
                raise ValueError(f"parts.{name}.corpus: no corpus {part.corpus!r}")
            for system_name, system in part.systems.items():
                unknown = [measure for measure in system.measures if measure not in self.measures]
                if unknown:
                    raise ValueError(f"parts.{name}.systems.{system_name}.measures: no measure {unknown[0]!r}")
        return self


def read_plan(path: Path) -> Plan:
    """Read and check a plan.

    Raises:
        UserError: it cannot be read, has an unknown key or a value of another type, or names what it does not define
    """
    try:
        merged = OmegaConf.merge(*_load(path, ()))
        return Plan.model_validate(OmegaConf.to_container(merged, resolve=True))
    except ValidationError as error:
        found = ((".".join(map(str, problem["loc"])), problem["msg"]) for problem in error.errors())
        raise UserError("\n".join(f"{path}: {place}: {message}" for place, message in found)) from error
    except (OmegaConfBaseException, YAMLError) as error:
        raise UserError(f"{path}: {one_line(error)}") from error


def _load(path: Path, including: Sequence[Path]) -> Iterator[Any]:
    """The plans that a plan includes, one after another, then itself."""
    if path in including:
        raise UserError(f"{path} includes itself")
    try:
        loaded: Any = OmegaConf.load(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if not OmegaConf.is_dict(loaded):
        raise UserError(f"{path}: a plan is a mapping with the keys {', '.join(Plan.model_fields)}")
    for name in loaded.get("include", []):
        yield from _load(path.parent / str(name), (*including, path))
    yield loaded
