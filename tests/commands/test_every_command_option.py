"""Every option of every ``ctxgates`` command is read, or refused where the command would not read it.

Commands, options and conditions come from the commands' own parsers. Each command is run with command lines that differ
in what they leave unread; each option that no condition excludes must have been read by the end of the run.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

import numpy as np
import pytest
from gensim.models import KeyedVectors

import ctxgates
from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis import sweep_runs
from fairseq_ctxgates.command_line import CommandParser
from fairseq_ctxgates.commands import (
    average_checkpoints,
    describe,
    export,
    gate_labels,
    preceding_sentences,
    relations,
)
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.relations.mask import pack_tuples
from tests.helpers.documents import COMMON, DOCUMENTS, TEXT
from tests.helpers.fairseq_commands import GATED, SMOOTHED, train, write_relations
from tests.helpers.trained import Trained

MODULES: Dict[str, Any] = {
    "gate-labels": gate_labels,
    "preceding-sentences": preceding_sentences,
    "relations": relations,
    "average-checkpoints": average_checkpoints,
    "describe": describe,
    "export": export,
}
PARSERS: Dict[str, CommandParser] = {
    **{name: module.get_parser() for name, module in MODULES.items()},
    **{f"analyze {name}": analysis.get_analysis(name).get_parser() for name in analysis.ANALYSES},
}
# Options that do something without being read by their name, with the reason.
NOT_BY_NAME = {
    "tokenizer": "fairseq builds it from the options as a whole; test_contrastive.py has it",
    "bpe": "the same",
    "one_document": "what remains where none of the others of its group is given",
}

LABELS = "data -s de -t en"
MODEL = "data --cpu --path isg.pt"
SYSTEMS = "--sys system.txt other.txt --ref test.en"
PLAIN_TEXT = "--source test.de --reference test.en --contrastive wrong.en"
# For each command the command lines; files are those of `place`.
COMMAND_LINES: Dict[str, List[str]] = {
    "gate-labels": [LABELS],
    "preceding-sentences": [
        f"{LABELS} --one-document",
        f"{LABELS} --documents test=test.docids",
        f"{LABELS} --blank-line-separated test=test.blank",
    ],
    "relations": [
        LABELS,
        f"{LABELS} --corenlp-url http://localhost:9000",
        f"{LABELS} --extractor stanza",
        f"{LABELS} --extractor jsonl --relations test=tuples.jsonl",
    ],
    "average-checkpoints": [
        "--inputs isg.pt --output mean.pt",
        "--inputs checkpoints --num-epoch-checkpoints 1 --output mean.pt",
        "--inputs checkpoints --num-update-checkpoints 1 --output mean.pt",
    ],
    "describe": [LABELS],
    "export": ["--path context.pt --output stock.pt"],
    "analyze forced-decoding": [MODEL],
    "analyze bleu-by-length": [f"data {SYSTEMS}", f"data --source test.de {SYSTEMS}"],
    "analyze bleu-by-unknowns": [f"data {SYSTEMS}", f"data --source test.de {SYSTEMS}"],
    "analyze compare": [SYSTEMS],
    "analyze attention-entropy": [MODEL, f"{MODEL} --figure entropy.png"],
    "analyze coherence": [
        "--ref test.en --vectors vectors.txt --one-document",
        f"{SYSTEMS} --train-vectors test.en --min-count 1 --documents test.docids",
        "--ref test.en --vectors vectors.txt --blank-line-separated test.blank",
    ],
    "analyze contrastive": [
        f"{MODEL} {PLAIN_TEXT}",
        f"{MODEL} --test-set anaphora.json",
        f"{MODEL} --test-set contrapro.json --preceding before.de",
        f"{MODEL} --test-set contrapro.json --documents subtitles",
    ],
    "analyze cxmi": [
        *(MODEL, f"{MODEL} --figure cxmi.png", f"{MODEL} --baseline-path plain.pt"),
        f"{MODEL} --tokens tokens.tsv --remove-bpe",
    ],
    "analyze sweep": [
        "data --option dropout --values 0.1 0.3 --save-dir runs --ref test.en --train=--cpu --baseline=--fp16",
    ],
    "analyze relations": ["data --cpu --path fra.pt"],
    "analyze gates": ["data --cpu --path rcg.pt", "data --cpu --path rcg.pt --figure gates.png"],
}
LINES = [(command, line) for command, lines in COMMAND_LINES.items() for line in lines]


def options_of(parser: CommandParser) -> Set[str]:
    """The names of a parser's options, as in the namespace that it makes."""
    return {action.dest for action in parser._actions if action.dest != "help"}


def unread(parser: CommandParser, args: argparse.Namespace) -> Set[str]:
    """The options of a parser that do nothing beside those of a command line."""
    conditions = [condition for condition in parser.conditions if not condition.holds(args)]
    return {name for condition in conditions for name in condition.options} & options_of(parser)


def excluded(parser: CommandParser, args: argparse.Namespace) -> Set[str]:
    """The options that argparse refuses beside those of a command line, because they exclude each other."""
    names = set()
    for group in parser._mutually_exclusive_groups:
        given = {action.dest for action in group._group_actions if getattr(args, action.dest) != action.default}
        if given:
            names |= {action.dest for action in group._group_actions} - given
    return names


def sample(parser: CommandParser, name: str) -> List[str]:
    """An option with a value that it takes."""
    (action,) = (action for action in parser._actions if action.dest == name)
    flag = action.option_strings[-1]
    if action.nargs == 0:
        return [flag]
    for value in (*(action.choices or ()), "1", "test=file", "{}"):
        try:
            action.type(value) if callable(action.type) else value
        except argparse.ArgumentTypeError:
            continue
        return [flag, str(value)]
    raise AssertionError(f"{flag} takes no value that is tried here")


@pytest.mark.parametrize("command", PARSERS)
def test_an_option_of_several_values_may_be_given_several_times(command: str) -> None:
    several = [action for action in PARSERS[command]._actions if action.nargs == "+"]
    assert {type(action).__name__ for action in several} <= {"_ExtendAction"}


# --- what a parser refuses


def refused_cases() -> Iterator[Tuple[str, str, str]]:
    for command, line in LINES:
        parser = PARSERS[command]
        for name in sorted(unread(parser, parser.parse_args(line.split()))):
            yield command, line, name


@pytest.mark.parametrize(("command", "line", "option"), list(refused_cases()))
def test_an_option_that_would_do_nothing_is_refused(
    command: str, line: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = PARSERS[command]
    with pytest.raises(SystemExit) as exit:
        parser.parse_args([*line.split(), *sample(parser, option)])
    assert exit.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"error: --{option.replace('_', '-')} would do nothing: it needs " in error


@pytest.mark.parametrize("command", PARSERS)
def test_every_condition_is_broken_by_one_command_line_and_met_by_another(command: str) -> None:
    parser = PARSERS[command]
    namespaces = [parser.parse_args(line.split()) for line in COMMAND_LINES[command]]
    for condition in parser.conditions:
        if set(condition.options) & options_of(parser):
            assert {bool(condition.holds(args)) for args in namespaces} == {True, False}, condition.needs


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (
            "relations",
            "data --extractor jsonl --relations train=x --corenlp-url x",
            "--corenlp-url .* --extractor coren",
        ),
        (
            "relations",
            "data --extractor jsonl --relations train=x --workers 1",
            "--workers would do nothing: .* parses",
        ),
        ("relations", "data --relations train=x", "--relations would do nothing: it needs --extractor jsonl"),
        ("relations", "data --corenlp-url x --corenlp-memory 4G", "--corenlp-memory .* the command starts"),
        (
            "analyze coherence",
            "--ref x --one-document --vectors x --dim 400",
            "--dim would .* it needs --train-vectors",
        ),
        ("analyze coherence", "--ref x --one-document --vectors x --names a", "--names would .* it needs --sys"),
        ("analyze coherence", "--ref x --one-document --vectors x --save-vectors x", "--save-vectors would do nothing"),
        (
            "analyze contrastive",
            "data --path x --test-set y --source z",
            "--source would .* plain text, not --test-set",
        ),
        (
            "analyze contrastive",
            "data --path x --source y --documents z",
            "--documents would .* --test-set contrapro.json",
        ),
        ("average-checkpoints", "--inputs a --output b --checkpoint-upper-bound 4", "needs --num-epoch-checkpoints or"),
        ("analyze gates", "data --path x --sentence 1", "--sentence would do nothing: it needs --figure"),
        ("analyze compare", "--sys a --ref b --resamples 0", "--resamples: '0' is not an integer from 1"),
        ("analyze gates", "data --path x --batch-size 0", "--batch-size: '0' is not an integer from 1"),
    ],
)
def test_the_error_names_the_option_and_what_it_needs(
    command: str, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the value is that which the option has by default."""
    with pytest.raises(SystemExit) as exit:
        PARSERS[command].parse_args(arguments.split())
    assert exit.value.code == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert re.search(message, error), error


# --- what a command reads


@pytest.fixture(scope="module")
def place(trained_on_documents: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the command lines name."""
    folder = tmp_path_factory.mktemp("commands")
    data = shutil.copytree(trained_on_documents.data, folder / "data")
    for split in DOCUMENTS:
        sources = Split(data, split, "de", "en").load_language("de")
        write_relations(data, split, [pack_tuples([[0, 1]] if len(source) > 2 else []) for source in sources])
    models = {
        "rcg": GATED,
        "fra": ("--arch", "fra_transformer_tiny", *SMOOTHED),
        "context": ("--arch", "context_transformer_tiny", *SMOOTHED),
    }
    for model, options in models.items():
        train(data, folder / model, *options, *COMMON, "--max-update", 1)
        shutil.copy(folder / model / "checkpoint_last.pt", folder / f"{model}.pt")
    gate_labels.main([str(data), "-s", "de", "-t", "en"])
    for model in ("isg", "plain"):
        shutil.copy(trained_on_documents[model], folder / f"{model}.pt")
    (folder / "checkpoints").mkdir()
    for name in ("checkpoint1.pt", "checkpoint_1_2.pt"):
        shutil.copy(folder / "plain.pt", folder / "checkpoints" / name)
    write_texts(folder)
    write_test_sets(folder)
    for name in ("dropout=0.1", "dropout=0.3", "baseline"):
        (folder / "runs" / name).mkdir(parents=True)
    return folder


def write_texts(folder: Path) -> None:
    pairs = [pair for document in TEXT["test"] for pair in document]
    texts = {
        "test.de": [source for source, _ in pairs],
        "test.en": [target for _, target in pairs],
        "system.txt": [target for _, target in pairs],
        "other.txt": [f"{target} z1" for _, target in pairs],
        "wrong.en": [f"{target} z1" for _, target in pairs],
        "test.docids": [str(number) for number, length in enumerate(DOCUMENTS["test"]) for _ in range(length)],
        "test.blank": [line for document in TEXT["test"] for line in (*(target for _, target in document), "")][:-1],
        "tuples.jsonl": [json.dumps({"words": source.split(), "tuples": []}) for source, _ in pairs],
    }
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    vectors = KeyedVectors(2)
    vectors.add_vectors(["z1", "z2", "z3"], np.eye(3, 2, dtype=np.float32))
    vectors.save_word2vec_format(str(folder / "vectors.txt"))


def write_test_sets(folder: Path) -> None:
    """One example of each form."""
    pair = {"correct": ["z1", "z2 z3"], "incorrect": ["z1", "z3 z2"]}
    anaphora = {"1": {"src": ["q1 q2", "q3"], "trg": [pair]}}
    entry = {
        "ref segment": "z2 z3",
        "src segment": "q3",
        "errors": [{"contrastive": "z3 z2", "replacement": "x", "type": "pronominal coreference"}],
        "ref pronoun": "z",
        "src pronoun": "q",
        "ante distance": 1,
        "document id": "one",
        "segment id": 2,
    }
    (folder / "anaphora.json").write_text(json.dumps(anaphora))
    (folder / "contrapro.json").write_text(json.dumps([entry]))
    (folder / "before.de").write_text("q1 q2\n")
    (folder / "subtitles" / "2010").mkdir(parents=True)
    (folder / "subtitles" / "2010" / "one.de").write_text("q1 q2\nq3\n")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Set[str]:
    """The names of the options that the command has read so far."""
    names: Set[str] = set()

    class Recording(argparse.Namespace):
        def __getattribute__(self, name: str) -> Any:
            names.add(name)
            return super().__getattribute__(name)

    parse_args = CommandParser.parse_args

    def parse_and_record(parser: CommandParser, args: Any = None, namespace: Any = None) -> Any:
        return Recording(**vars(parse_args(parser, args, namespace)))

    monkeypatch.setattr(CommandParser, "parse_args", parse_and_record)
    return names


@pytest.mark.usefixtures("extractor")
@pytest.mark.parametrize(("command", "line"), LINES, ids=[" ".join(case) for case in LINES])
def test_every_option_that_is_not_refused_is_read(
    place: Path, tmp_path: Path, read: Set[str], command: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = PARSERS[command]
    args = parser.parse_args(line.split())
    refused = unread(parser, args) | excluded(parser, args)
    read.clear()
    folder = shutil.copytree(place, tmp_path / "place")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sweep_runs, "fairseq", pretend_to_train)
    ctxgates.main([*command.split(), *line.split()])
    assert options_of(parser) - refused - read - NOT_BY_NAME.keys() == set()


def pretend_to_train(command: List[str], output: Path, _: Path) -> None:
    """In place of fairseq's commands in a sweep: a model, or translations."""
    if command[0] == "train":
        shutil.copy("plain.pt", output.parent / "checkpoint_best.pt")
    else:
        shutil.copy("system.txt", output)
