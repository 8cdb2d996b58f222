"""Every command on the pages of the papers names options that exist, with the papers' settings."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, List, NamedTuple

import pytest

import fairseq_ctxgates.models
import fairseq_ctxgates.tasks  # noqa: F401
from fairseq_ctxgates.analysis import get_analysis
from fairseq_ctxgates.modules.dropout import Dropout
from tests.helpers.pages import DOCS, PAPERS, README, ROOT, page_commands
from tests.helpers.recipes import check_training, parse

DOCUMENTATION = ("documents", "relations", "analyses")  # the pages of docs/ with commands


class Command(NamedTuple):
    """A recorded command, and the example that it is of."""

    example: str
    words: List[str]

    def __str__(self) -> str:
        return f"{self.example}: {' '.join(self.words[:3])}"


def record_pages() -> List[Command]:
    """The commands of the README, of docs/ and of the papers' pages, in a folder with empty text files."""
    with tempfile.TemporaryDirectory() as folder:
        for split in ("train", "valid", "test"):
            for ending in ("docids", "de", "en", "zh"):
                (Path(folder) / f"{split}.{ending}").touch()
        (Path(folder) / "ctxpro.inputs").touch()
        pages = {"README": README, **{name: DOCS / f"{name}.md" for name in DOCUMENTATION}}
        pages.update({name: ROOT / "examples" / name / "README.md" for name in PAPERS})
        return [Command(name, words) for name, page in pages.items() for words in page_commands(page, Path(folder))]


COMMANDS = record_pages()
TRAININGS = [command for command in COMMANDS if command.words[0] == "fairseq-train"]
SCORES = [
    command for command in COMMANDS if command.words[2] in ("compare", "sweep", "bleu-by-length", "bleu-by-unknowns")
]


def test_every_page_has_commands() -> None:
    assert {command.example for command in COMMANDS} == {"README", *DOCUMENTATION, *PAPERS}
    assert len(TRAININGS) >= 10 and len(SCORES) >= 10


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_option_is_known(command: Command) -> None:
    """An unknown one would end the parser with an error."""
    parse(command.words)


@pytest.mark.parametrize("command", TRAININGS, ids=str)
def test_options_reach_the_model(command: Command) -> None:
    """The model is built, which refuses options that would do nothing, and reads the streams that are loaded for it."""
    check_training(parse(command.words))


@pytest.mark.parametrize("command", [command for command in TRAININGS if command.example == "isg"], ids=str)
def test_dropout_of_the_inter_sentence_gates_paper_is_before_the_output_layer_only(command: Command) -> None:
    model = check_training(parse(command.words))
    dropouts = {name: module.p for name, module in model.named_modules() if isinstance(module, Dropout)}
    assert len(dropouts) == 5 and dropouts.pop("decoder.output_dropout") == 0.5
    assert set(dropouts.values()) == {0.0}


@pytest.mark.parametrize("command", [command for command in SCORES if command.example in PAPERS], ids=str)
def test_bleu_is_case_insensitive_on_text_in_tokens(command: Command) -> None:
    """As in all four papers; only Li et al.'s English-German, for which there is no command, is not."""
    args = parse(command.words)
    assert args.lowercase and args.tokenize == "none"


def command_with(example: str, *words: str) -> Any:
    """The options of the one command of an example that has these words."""
    (found,) = (one.words for one in COMMANDS if one.example == example and set(words) <= set(one.words))
    return parse(found)


def test_figures_have_the_papers_columns() -> None:
    lengths = command_with("rcg", "bleu-by-length").buckets.names
    assert lengths == ["≤9", "10–19", "20–29", "30–39", "40–49", "50–59", ">59"]  # [0,10), ..., [60,130)
    unknowns = command_with("car", "bleu-by-unknowns").buckets.names
    assert len(unknowns) == 11 and unknowns == get_default_buckets("bleu-by-unknowns")


def get_default_buckets(what: str) -> List[str]:
    args = get_analysis(what).parse_args(["data", "--sys", "a", "--ref", "b"])
    names: List[str] = args.buckets.names
    return names


def test_sweeps_have_the_papers_settings() -> None:
    lambdas = command_with("rcg", "sweep", "gate-lambda")
    assert lambdas.values == ["0.1", "0.5", "1", "2", "10"] and lambdas.baseline is None
    regularized = command_with("rcg", "sweep", "regularized-layers")
    assert regularized.values == ["1", "2", "3", "4", "all"] and regularized.baseline == "--gate-lambda 0"
    layers = command_with("fra", "sweep", "relation-layers")
    assert layers.values == "1 2 3 4 5 6 1-6 1-2 1-3 1-4 1-5 4-6 5-6".split()
    assert layers.baseline == command_with("fra", "sweep", "relation-lambda").baseline == "--relation-fusion none"
