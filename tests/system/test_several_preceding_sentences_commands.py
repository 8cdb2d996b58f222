"""Several preceding sentences through fairseq's commands, for the gate and for concatenation; the data directory was
made for one."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from fairseq import checkpoint_utils
from fairseq.hub_utils import GeneratorHubInterface

from fairseq_ctxgates import analysis
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
    logged,
    new_parameters,
    printed_alignments,
    run,
    train,
    validate,
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
    found = trained.translations(model)
    assert len(found) == 20
    for size in (("--batch-size", "1"), ("--batch-size", "20"), ("--max-tokens", "30")):
        check_batches_change_nothing(trained.data, trained[model], size, found)


@pytest.mark.parametrize("model", ["two", "two on rnnsearch", "two concatenated"])
@pytest.mark.parametrize("buffer_size", [1, 7])
def test_interactive_equals_generate(trained: Trained, model: str, tmp_path: Path, buffer_size: int) -> None:
    lines = interactive_lines()
    sizes = ("--buffer-size", buffer_size, "--batch-size", min(buffer_size, 4))
    found = interactive(trained.data, trained[model], lines, tmp_path, *SEARCH, *sizes)
    expected = trained.translations(model)
    check_same_translations(dict(enumerate(h for h, line in zip(found, lines) if line)), expected)


@pytest.mark.parametrize("model", ["two", "two on rnnsearch"])
def test_every_sentence_has_an_alignment_that_batches_do_not_change(trained: Trained, model: str) -> None:
    command = (*TASK, "--path", trained[model], *DECODING, "--print-alignment")
    found = printed_alignments(run("generate", trained.data, *command))
    assert len(found) == 20 and all(found.values())
    assert printed_alignments(run("generate", trained.data, *command, "--batch-size", "1")) == found


def test_ensemble_of_models_that_read_one_and_two(trained: Trained, trained_on_documents: Trained) -> None:
    paths = [trained["two"], trained_on_documents["isg"], trained_on_documents["plain"]]
    found = generate(trained.data, ":".join(map(str, paths)), "--score-reference")
    check_ensemble_scores(found, [generate(trained.data, path, "--score-reference") for path in paths])


@pytest.mark.parametrize("model", ["two", "two on rnnsearch", "two concatenated"])
def test_validate_and_the_hub(trained: Trained, model: str) -> None:
    last = float(logged(trained.logs[model], "valid")[-1]["valid_loss"])
    assert float(validate(trained.data, trained[model])["valid_loss"]) == pytest.approx(last, abs=2e-3)
    models, config, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(trained[model])], arg_overrides={"data": str(trained.data)}
    )
    hub = GeneratorHubInterface(config, task, models)
    found = hub.translate([source for source, _ in TEXT["test"][0]], beam=2, max_len_b=12)
    expected = trained.translations(model)
    assert found == [expected[row].text for row in range(len(TEXT["test"][0]))]


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
    assert "training continues with --concatenate-preceding </s> and --concatenate-number 2, as the checkpoint" in log


def analyze(name: str, trained: Trained, model: str, folder: Path, *options: object) -> Dict[str, Any]:
    """The JSON of an analysis of a model."""
    arguments = [name, trained.data, "--path", trained[model], "--cpu", "--json", folder / "report.json", *options]
    analysis.main(list(map(str, arguments)))
    report: Dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report


@pytest.mark.parametrize("model", ["two", "two on rnnsearch", "two concatenated"])
def test_cxmi_is_zero_only_where_no_sentence_precedes(trained: Trained, model: str, tmp_path: Path) -> None:
    (found,) = analyze("cxmi", trained, model, tmp_path, "--max-tokens", 60)["systems"]
    assert [found[name]["sentences"] for name in ("all", "with_a_preceding_sentence", "without_one")] == [20, 17, 3]
    assert found["without_one"]["cxmi"] == pytest.approx(0, abs=1e-6)
    assert abs(found["with_a_preceding_sentence"]["cxmi"]) > 1e-4


@pytest.mark.parametrize("model", ["two", "two on rnnsearch", "two concatenated"])
def test_cxmi_beside_the_sentences_before_another(trained: Trained, model: str, tmp_path: Path) -> None:
    """Of which the cross-entropy is that of the references after them."""
    (found,) = analyze("cxmi", trained, model, tmp_path, "--shifted-context")["systems"]
    bits = found["all"]["cross_entropy_with"], found["all"]["cross_entropy_without"]
    for context, expected in zip(("own", "shifted"), bits):
        scored = run(
            *("generate", trained.data, *TASK, "--path", trained[model], *DECODING, "--score-reference"),
            *("--preceding-context", context),
        )
        scores = [float(score) for line in re.findall(r"^P-\d+\t(.*)$", scored, re.M) for score in line.split()]
        assert -sum(scores) / len(scores) == pytest.approx(expected, abs=5e-5)
    assert found["without_one"]["cxmi"] == pytest.approx(0, abs=1e-6)
    assert abs(bits[0] - bits[1]) > 6e-5


@pytest.mark.parametrize(
    "model", [(*ISG, "--inter-sentence-context", 2), (*PLAIN, *CONCATENATE)], ids=["gate", "plain"]
)
def test_a_model_of_shifted_contexts(trained: Trained, model: Tuple[Any, ...], tmp_path: Path) -> None:
    """Its checkpoint knows that it was trained on them; lines of text are read with their own."""
    log = train(trained.data, tmp_path, *model, *COMMON, "--preceding-context", "shifted", "--max-epoch", 2)
    path = tmp_path / "checkpoint_last.pt"
    last = float(logged(log, "valid")[-1]["valid_loss"])
    assert float(validate(trained.data, path)["valid_loss"]) == pytest.approx(last, abs=2e-3)
    found = generate(trained.data, path)
    check_same_translations(generate(trained.data, path, "--preceding-context", "shifted"), found)
    own = generate(trained.data, path, "--preceding-context", "own")
    assert 0 < len(differ(own, found)) <= 17
    goes_on = ("--restore-file", path, "--preceding-context", "own", "--max-epoch", 3)
    with pytest.raises(
        UserError, match="without --preceding-context: the checkpoint was trained with .* shifted; leave"
    ):
        train(trained.data, tmp_path / "own", *model, *COMMON, *goes_on)
    lines = interactive_lines()
    read = interactive(trained.data, path, lines, tmp_path, *SEARCH)
    check_same_translations(dict(enumerate(h for h, line in zip(read, lines) if line)), own)


@pytest.mark.parametrize("model", ["two", "two on rnnsearch"])
def test_attention_by_distance(
    trained: Trained, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = analyze("attention-entropy", trained, model, tmp_path)
    for summary in found["summary"]:
        assert sum(summary["shares"]) == pytest.approx(1, abs=1e-4)
        if summary["kind"] == "NULL":
            assert summary["shares"] == pytest.approx([1, 0], abs=1e-4)
        else:
            assert 0.1 < summary["shares"][1] < 0.9
    assert "attention at distance 2" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["two", "two on rnnsearch", "two concatenated"])
def test_contrastive_scores_are_those_of_the_documents(trained: Trained, model: str, tmp_path: Path) -> None:
    """Where two preceding sentences are given."""
    documents = [[source for source, _ in document] for document in TEXT["test"]]
    pairs = [pair for document in TEXT["test"] for pair in document]
    texts = {
        "nearest": [line for document in documents for line in ["", *document[:-1]]],
        "further": [line for document in documents for line in ["", "", *document][: len(document)]],
        "source": [source for source, _ in pairs],
        "reference": [target for _, target in pairs],
        "contrastive": [f"{target} z3" for _, target in pairs],
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = [word for name in list(texts)[2:] for word in (f"--{name}", tmp_path / name)]
    files += ["--preceding", tmp_path / "nearest", tmp_path / "further", "--csv", tmp_path / "scores.csv"]
    analyze("contrastive", trained, model, tmp_path, *files, "--normalize", "--names", "x")
    with open(tmp_path / "scores.csv", encoding="utf-8") as stream:
        found = [float(row["x: right translation"]) for row in csv.DictReader(stream)]
    expected = trained.scores(model)
    assert found == pytest.approx([expected[row].score * math.log(2) for row in range(20)], abs=1e-3)


@pytest.mark.parametrize("model", ["two", "two on rnnsearch"])
def test_examples_of_a_contrastive_set_do_not_see_each_other(trained: Trained, model: str, tmp_path: Path) -> None:
    """Each has one preceding sentence, and the one before that is no other example's."""
    pairs = [pair for document in TEXT["test"][:2] for pair in document]
    texts = {"preceding": [source for source, _ in pairs[:-1]], "source": [source for source, _ in pairs[1:]]}
    texts["reference"] = [target for _, target in pairs[1:]]
    texts["contrastive"] = [f"{target} r1" for target in texts["reference"]]

    def scores(rows: List[int]) -> List[float]:
        files = []
        for name, lines in texts.items():
            (tmp_path / name).write_text("".join(f"{lines[row]}\n" for row in rows), encoding="utf-8")
            files += [f"--{name}", tmp_path / name]
        analyze("contrastive", trained, model, tmp_path, *files, "--csv", tmp_path / "scores.csv")
        with open(tmp_path / "scores.csv", encoding="utf-8") as stream:
            table = list(csv.DictReader(stream))
        (column,) = (name for name in table[0] if name.endswith(": right translation"))
        return [float(row[column]) for row in table]

    rows = list(range(len(pairs) - 1))
    assert scores(rows[::-1]) == pytest.approx(scores(rows)[::-1], abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*ISG, "--inter-sentence-context", "0"), "--inter-sentence-context 0: it must be at least 1"),
        ((*PLAIN, "--inter-sentence-context", "2"), "unrecognized arguments: --inter-sentence-context 2"),
        ((*PLAIN, "--concatenate-number", "2"), "--concatenate-number 2 needs --concatenate-preceding"),
        ((*PLAIN, *CONCATENATE[:3], "0"), "--concatenate-number 0: it must be at least 1"),
        ((*PLAIN, "--preceding-context", "own"), "--preceding-context own would do nothing: the model reads no prec"),
    ],
)
def test_options_that_do_not_fit(
    trained: Trained, tmp_path: Path, options: Tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_training_is_refused(trained.data, tmp_path, options, message, capsys)
