"""Several preceding sentences through fairseq's commands, for the gate and for concatenation; the data directory was
made for one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

from fairseq_ctxgates.errors import UserError
from tests.helpers.documents import COMMON, ISG, ISG_RNNSEARCH, TEXT, interactive_lines
from tests.helpers.fairseq_commands import (
    DECODING,
    PLAIN,
    SEARCH,
    TASK,
    check_batches_change_nothing,
    check_ensemble_scores,
    check_same_translations,
    check_training_is_refused,
    differ,
    generate,
    interactive,
    new_parameters,
    run,
    train,
)
from tests.helpers.trained import Trained, train_models

TWO = ("--inter-sentence-context", 2)
CONCATENATE = ("--concatenate-preceding", "</s>", "--concatenate-number", 2)


@pytest.fixture(scope="module")
def trained(trained_on_documents: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Models that read two preceding sentences, beside those that read one."""
    models: Dict[str, Tuple[Any, ...]] = {
        "two": (*ISG, *TWO, "--warm-start", trained_on_documents["isg"], "--max-epoch", 2),
        "two on rnnsearch": (*ISG_RNNSEARCH, *TWO, "--max-epoch", 2),
        "two concatenated": (*PLAIN, *CONCATENATE, "--max-epoch", 2),
    }
    return train_models(trained_on_documents.data, tmp_path_factory.mktemp("two"), models, *COMMON)


def test_a_model_of_one_sentence_is_a_warm_start(trained: Trained) -> None:
    """What is new is the vectors of the distances."""
    assert new_parameters(trained.logs["two"]) == (1, 0)


@pytest.mark.parametrize("model", ["two", "two on rnnsearch"])
def test_batches_change_nothing(trained: Trained, model: str) -> None:
    found = generate(trained.data, trained[model])
    assert len(found) == 20
    for size in (("--batch-size", "1"), ("--batch-size", "20"), ("--max-tokens", "30")):
        check_batches_change_nothing(trained.data, trained[model], size, found)


@pytest.mark.parametrize("model", ["two", "two on rnnsearch", "two concatenated"])
@pytest.mark.parametrize("buffer_size", [1, 7])
def test_interactive_equals_generate(trained: Trained, model: str, tmp_path: Path, buffer_size: int) -> None:
    lines = interactive_lines()
    sizes = ("--buffer-size", buffer_size, "--batch-size", min(buffer_size, 4))
    found = interactive(trained.data, trained[model], lines, tmp_path, *SEARCH, *sizes)
    expected = generate(trained.data, trained[model])
    check_same_translations(dict(enumerate(h for h, line in zip(found, lines) if line)), expected)


def test_ensemble_of_models_that_read_one_and_two(trained: Trained, trained_on_documents: Trained) -> None:
    paths = [trained["two"], trained_on_documents["isg"], trained_on_documents["plain"]]
    found = generate(trained.data, ":".join(map(str, paths)), "--score-reference")
    check_ensemble_scores(found, [generate(trained.data, path, "--score-reference") for path in paths])


def test_the_checkpoint_knows_how_many_it_concatenates(trained: Trained, tmp_path: Path) -> None:
    model = trained["two concatenated"]
    output = run("generate", trained.data, *TASK, "--path", model, *DECODING)
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", output, re.M))
    first, second, third = (source for source, _ in TEXT["test"][0][:3])
    # fairseq strips the end of sentence from what it prints.
    assert sources["2"].replace("</s> ", "") == f"{first} {second} {third}"
    other = generate(trained.data, model, "--concatenate-preceding", "</s>", "--concatenate-number", "1")
    assert len(differ(other, generate(trained.data, model))) > 5
    with pytest.raises(UserError, match="--concatenate-number 3: the checkpoint was trained with .* 2; leave"):
        train(
            trained.data,
            tmp_path,
            *(*PLAIN, "--concatenate-preceding", "</s>", "--concatenate-number", "3", *COMMON),
            *("--restore-file", model, "--max-epoch", 3),
        )
    log = train(trained.data, tmp_path, *PLAIN, *COMMON, "--restore-file", model, "--max-epoch", 3)
    assert "training goes on with --concatenate-preceding </s> and --concatenate-number 2, as the checkpoint" in log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*ISG, "--inter-sentence-context", "0"), "--inter-sentence-context 0: it must be at least 1"),
        ((*PLAIN, "--inter-sentence-context", "2"), "unrecognized arguments: --inter-sentence-context 2"),
        ((*PLAIN, "--concatenate-number", "2"), "--concatenate-number 2 needs --concatenate-preceding"),
        ((*PLAIN, *CONCATENATE[:3], "0"), "--concatenate-number 0: it must be at least 1"),
    ],
)
def test_options_that_do_not_fit(
    trained: Trained, tmp_path: Path, options: Tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_training_is_refused(trained.data, tmp_path, options, message, capsys)
