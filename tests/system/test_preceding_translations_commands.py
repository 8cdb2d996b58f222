"""Models that read the preceding translations (``--concatenate-preceding-target``) through fairseq's commands: they
translate as a loop over the sentences of a document would, in whatever batches, and all that is scored or printed is of
the sentence itself."""

from __future__ import annotations

import csv
import json
import math
import re
from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from torch import Tensor

from fairseq_ctxgates import analysis
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.errors import UserError
from tests.helpers.documents import COMMON, DOCUMENTS, TEXT, interactive_lines
from tests.helpers.fairseq_commands import (
    DECODING,
    EVAL_BLEU,
    PLAIN,
    SEARCH,
    SMOOTHED,
    TASK,
    Hypothesis,
    check_batches_change_nothing,
    check_ensemble_scores,
    check_logged_bleu,
    check_same_translations,
    check_training_is_refused,
    differ,
    generate,
    interactive,
    labels_of,
    logged,
    run,
    train,
    validate,
)
from tests.helpers.outputs import page_content
from tests.helpers.reference_search import beam_search, next_log_probs
from tests.helpers.trained import Trained, train_models

TARGET = ("--concatenate-preceding", "</s>", "--concatenate-preceding-target")
TWO = (*TARGET, "--concatenate-number", 2)
SEPARATED = ("--concatenate-preceding", "q1", "--concatenate-preceding-target")
LSTM_SIZE = [f"--{side}-{part}" for side in ("encoder", "decoder") for part in ("embed-dim", "hidden-size")]
LSTM = ("--arch", "lstm", *(word for name in (*LSTM_SIZE, "--decoder-out-embed-dim") for word in (name, 16)), *SMOOTHED)
TRANSLATIONS = (*TARGET, "--concatenate-number", 0, "--concatenate-target-number", 2, "--ignore-preceding-target")
# How many preceding sentences and translations each model reads, and the separator.
MODELS = {
    "target": (1, 1, "</s>"),
    "two on rnnsearch": (2, 2, "</s>"),
    "two of stock": (2, 2, "</s>"),
    "translations": (0, 2, "</s>"),
    "separated": (1, 1, "q1"),
    "lstm": (1, 1, "</s>"),  # whose decoder returns no attention when it translates
}


@pytest.fixture(scope="module")
def trained(trained_on_documents: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    models: Dict[str, Tuple[Any, ...]] = {
        "target": ("--arch", "context_transformer_tiny", *SMOOTHED, *TARGET, "--max-epoch", 6),
        "two on rnnsearch": ("--arch", "rnnsearch_tiny", *SMOOTHED, *TWO, "--max-epoch", 4),
        "two of stock": (*PLAIN, *TWO, "--max-epoch", 4),
        "translations": (*PLAIN, *TRANSLATIONS, "--max-epoch", 4),
        "separated": (*PLAIN, *SEPARATED, "--max-epoch", 4),
        "lstm": (*LSTM, *TARGET, "--max-epoch", 4),
        "gated": ("--arch", "rcg_transformer_tiny", *SMOOTHED, *TARGET, "--max-epoch", 1),
    }
    return train_models(trained_on_documents.data, tmp_path_factory.mktemp("target"), models, *COMMON)


def load(path: Path) -> Tuple[torch.nn.Module, Any]:
    """A trained model, and its task."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    model.eval()
    return model, task


def before(sentences: List[Tensor], place: int, first: int, number: int, separator: int) -> List[int]:
    """What stands before a sentence: those of its document before it, each with a separator for its end."""
    rows = range(max(first, place - number), place)
    return [token for row in rows for token in (*sentences[row].tolist()[:-1], separator)]


def translate_one_by_one(
    data: Path,
    path: Path,
    number: int,
    target_number: int,
    separator: str,
    after_references: bool = False,
    **options: Any,
) -> Dict[int, Hypothesis]:
    """The translations of the test split by a loop over the sentences of each document."""
    model, task = load(path)
    split = Split(data, "test", "de", "en")
    sources, first = list(split.load_language("de")), 0
    references = list(split.load_language("en"))
    found: List[Tensor] = []
    between = {side: getattr(task, f"{side}_dictionary").index(separator) for side in ("source", "target")}
    scores = []
    for length in DOCUMENTS["test"]:
        for place in range(first, first + length):
            source = torch.tensor([*before(sources, place, first, number, between["source"]), *sources[place].tolist()])
            continued = references if after_references else found
            context = before(continued, place, first, target_number, between["target"])
            best = beam_search(model, source, context, **options)[0]
            found.append(torch.tensor(best.tokens))
            scores.append(best.score / math.log(2))
        first += length
    return {row: Hypothesis(scores[row], task.target_dictionary.string(found[row])) for row in range(len(found))}


@pytest.mark.parametrize("model", MODELS)
def test_it_translates_as_a_loop_over_the_sentences(trained: Trained, model: str) -> None:
    expected = translate_one_by_one(trained.data, trained[model], *MODELS[model], beam=2, longest=12)
    check_same_translations(trained.translations(model), expected)


@pytest.mark.parametrize("model", ["target", "two on rnnsearch", "translations"])
def test_it_translates_after_the_references(trained: Trained, model: str) -> None:
    reading = (*MODELS[model], True)
    expected = translate_one_by_one(trained.data, trained[model], *reading, beam=2, longest=12)
    found = generate(trained.data, trained[model], "--preceding-references")
    check_same_translations(found, expected)
    for size in (("--batch-size", "1"), ("--batch-size", "20", "--num-workers", "1")):
        check_batches_change_nothing(trained.data, trained[model], (*size, "--preceding-references"), found)
    assert differ(found, trained.translations(model))


def test_processes_share_out_what_continues_references(trained: Trained) -> None:
    options = (trained.data, trained["target"], "--preceding-references")
    shards = [generate(*options, "--distributed-world-size", 2, "--distributed-rank", rank) for rank in (0, 1)]
    assert all(shards)
    assert not shards[0].keys() & shards[1].keys()
    check_same_translations({**shards[0], **shards[1]}, generate(*options))


@pytest.mark.parametrize(
    ("options", "search"),
    [
        (("--beam", 4, "--lenpen", 0.3), {"beam": 4, "penalty": 0.3, "longest": 12}),
        (("--beam", 3, "--max-len-b", 3), {"beam": 3, "longest": 3}),
        (("--beam", 3, "--min-len", 5), {"beam": 3, "longest": 12, "shortest": 5}),
        (("--beam", 3, "--min-len", 12), {"beam": 3, "longest": 12, "shortest": 12}),
        (("--beam", 2, "--unnormalized"), {"beam": 2, "longest": 12, "penalty": 0.0}),
    ],
)
def test_lengths_are_those_of_the_sentence(trained: Trained, options: Tuple[Any, ...], search: Dict[str, Any]) -> None:
    expected = translate_one_by_one(trained.data, trained["target"], *MODELS["target"], **search)
    check_same_translations(generate(trained.data, trained["target"], *options), expected)


def test_sampling_continues_translations_too(trained: Trained) -> None:
    """Of the likeliest word alone, it is the search with one beam."""
    greedy = ("--beam", 1)
    found = generate(trained.data, trained["target"], *greedy, "--sampling", "--sampling-topk", 1)
    check_same_translations(found, generate(trained.data, trained["target"], *greedy))


@pytest.mark.parametrize("model", MODELS)
def test_batches_change_nothing(trained: Trained, model: str) -> None:
    found = trained.translations(model)
    assert len(found) == 20
    for size in (("--batch-size", "1"), ("--batch-size", "20"), ("--max-tokens", "40")):
        check_batches_change_nothing(trained.data, trained[model], size, found)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("buffer_size", [1, 7])
def test_interactive_equals_generate(trained: Trained, model: str, tmp_path: Path, buffer_size: int) -> None:
    """Documents go on from one buffer to the next."""
    lines = interactive_lines()
    sizes = ("--buffer-size", buffer_size, "--batch-size", min(buffer_size, 4))
    found = interactive(trained.data, trained[model], lines, tmp_path, *SEARCH, *sizes)
    expected = trained.translations(model)
    check_same_translations(dict(enumerate(h for h, line in zip(found, lines) if line)), expected)


def test_what_is_printed_is_of_the_sentence_alone(trained: Trained) -> None:
    output = run("generate", trained.data, *TASK, "--path", trained["target"], *DECODING)
    targets = [target for document in TEXT["test"] for _, target in document]
    assert dict(re.findall(r"^T-(\d+)\t(.*)$", output, re.M)) == {str(row): text for row, text in enumerate(targets)}
    lengths = {row: len(scores.split()) for row, scores in re.findall(r"^P-(\d+)\t(.*)$", output, re.M)}
    translations = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", output, re.M))
    assert lengths == {row: 1 + len(text.split()) for row, text in translations.items()}


@pytest.mark.parametrize("model", MODELS)
def test_references_are_scored_after_the_references_before(trained: Trained, model: str) -> None:
    found = trained.scores(model)
    loaded, task = load(trained[model])
    split = Split(trained.data, "test", "de", "en")
    sources, targets = (list(split.load_language(lang)) for lang in ("de", "en"))
    number, target_number, separator = MODELS[model]
    between = [dictionary.index(separator) for dictionary in (task.source_dictionary, task.target_dictionary)]
    first = 0
    for length in DOCUMENTS["test"]:
        for row in range(first, first + length):
            source = torch.tensor([*before(sources, row, first, number, between[0]), *sources[row].tolist()])
            context = [2, *before(targets, row, first, target_number, between[1])]
            words = targets[row].tolist()
            scores = [
                float(next_log_probs(loaded, source, [[*context, *words[:place]]])[0, word])
                for place, word in enumerate(words)
            ]
            assert found[row].score == pytest.approx(sum(scores) / len(scores) / math.log(2), abs=1e-4)
        first += length


def test_validation_is_of_the_sentences_alone(trained: Trained) -> None:
    """And equals the score of the references."""
    meters = validate(trained.data, trained["target"])
    scored = run(
        *("generate", trained.data, *TASK, "--path", trained["target"], *DECODING),
        *("--score-reference", "--gen-subset", "valid"),
    )
    scores = [float(score) for line in re.findall(r"^P-\d+\t(.*)$", scored, re.M) for score in line.split()]
    targets = [target for document in TEXT["valid"] for _, target in document]
    assert len(scores) == sum(1 + len(target.split()) for target in targets)
    assert float(meters["valid_nll_loss"]) == pytest.approx(-sum(scores) / len(scores), abs=2e-3)
    last = logged(trained.logs["target"], "valid")[-1]
    assert float(meters["valid_loss"]) == pytest.approx(float(last["valid_loss"]), abs=2e-3)


def test_eval_bleu_is_that_of_generate_and_goes_on(trained: Trained, tmp_path: Path) -> None:
    """Also where a resumed training has the option from its checkpoint."""
    model = trained["target"]
    options = ("--arch", "context_transformer_tiny", *SMOOTHED, *COMMON, *EVAL_BLEU, "--restore-file", model)
    log = train(trained.data, tmp_path, *options, "--max-epoch", 7)
    assert "with --concatenate-preceding </s> and --concatenate-preceding-target, as the checkpoint was trained" in log
    check_logged_bleu(trained.data, tmp_path / "checkpoint_last.pt", log)


def test_the_same_numbers_given_and_not(trained: Trained, tmp_path: Path) -> None:
    """Are one input: training goes on."""
    same = ("--concatenate-target-number", 2, "--restore-file", trained["two of stock"], "--max-epoch", 5)
    log = train(trained.data, tmp_path, *PLAIN, *TWO, *COMMON, *same)
    assert logged(log, "train")[-1]["epoch"] == 5


def test_an_ensemble_scores_by_both_models_and_batches_change_nothing(trained: Trained) -> None:
    one, two = trained["two on rnnsearch"], trained["two of stock"]
    found = generate(trained.data, f"{one}:{two}", "--score-reference")
    check_ensemble_scores(found, [trained.scores("two on rnnsearch"), trained.scores("two of stock")])
    together = generate(trained.data, f"{one}:{two}")
    check_batches_change_nothing(trained.data, f"{one}:{two}", ("--batch-size", "1"), together)  # type: ignore[arg-type]
    assert len(differ(together, trained.translations("two on rnnsearch"))) > 5


def test_the_hub_translates_a_list_as_a_document(trained: Trained) -> None:
    from fairseq.hub_utils import GeneratorHubInterface

    models, config, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(trained["target"])], arg_overrides={"data": str(trained.data)}
    )
    hub = GeneratorHubInterface(config, task, models)
    expected = trained.translations("target")
    for _ in range(2):  # one list does not follow the other
        found = hub.translate([source for source, _ in TEXT["test"][0]], beam=2, max_len_b=12)
        assert found == [expected[row].text for row in range(len(TEXT["test"][0]))]


@pytest.mark.parametrize("model", ["target", "separated", "two on rnnsearch", "translations"])
def test_contrastive_scores_are_those_of_the_references(trained: Trained, model: str, tmp_path: Path) -> None:
    """After the references before, which the test set gives, two at most; without them such a model is refused."""
    documents = TEXT["test"]
    pairs = [pair for document in documents for pair in document]
    nearest, further = (
        [pair for document in documents for pair in [*[("", "")] * distance, *document][: len(document)]]
        for distance in (1, 2)
    )
    texts = {
        "source": [[source for source, _ in pairs]],
        "preceding": [[source for source, _ in before] for before in (nearest, further)],
        "preceding-target": [[target for _, target in before] for before in (nearest, further)],
        "reference": [[target for _, target in pairs]],
        "contrastive": [[f"{target} z3" for _, target in pairs]],
    }
    files: Dict[str, List[Any]] = {}
    for name, columns in texts.items():
        files[name] = [f"--{name}", *(tmp_path / f"{name}{number}" for number in range(len(columns)))]
        for path, lines in zip(files[name][1:], columns):
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = ["contrastive", trained.data, "--path", trained[model], "--names", model, "--cpu"]
    command += ["--csv", tmp_path / "scores.csv"]
    analysis.main(
        [str(word) for word in [*command, "--normalize", *(word for given in files.values() for word in given)]]
    )
    with open(tmp_path / "scores.csv", encoding="utf-8") as stream:
        found = [float(row[f"{model}: right translation"]) for row in csv.DictReader(stream)]
    expected = trained.scores(model)
    assert found == pytest.approx([expected[row].score * math.log(2) for row in range(20)], abs=1e-3)
    del files["preceding-target"]
    with pytest.raises(
        UserError, match="source0: line 2 does not have the translations of the preceding sentences, which"
    ):
        analysis.main([str(word) for word in [*command, *(word for given in files.values() for word in given)]])


@pytest.mark.parametrize("model", ["target", "two on rnnsearch", "translations"])
def test_cxmi_is_of_the_sentences_alone(trained: Trained, model: str, tmp_path: Path) -> None:
    """Both texts before a sentence are what it is worth."""
    command = ["cxmi", trained.data, "--path", trained[model], "--cpu", "--json", tmp_path / "cxmi.json"]
    analysis.main(list(map(str, command)))
    (found,) = json.loads((tmp_path / "cxmi.json").read_text(encoding="utf-8"))["systems"]
    assert found["all"]["target_tokens"] == sum(
        1 + len(target.split()) for document in TEXT["test"] for _, target in document
    )
    assert found["without_one"]["cxmi"] == pytest.approx(0, abs=1e-6)
    assert abs(found["with_a_preceding_sentence"]["cxmi"]) > 1e-4


@pytest.mark.parametrize("model", ["target", "translations"])
def test_a_page_shows_the_sources_that_are_read(trained: Trained, model: str, tmp_path: Path) -> None:
    """And the attention over them; a model that reads translations alone reads none."""
    page = tmp_path / "page.html"
    command = ["cxmi", trained.data, "--path", trained[model], "--cpu", "--html", page, "--sentence", 9]
    analysis.main(list(map(str, command)))
    second = page_content(page.read_text(encoding="utf-8"))["sentences"][1]
    reads_sources = model == "target"
    assert second["before"] == ([TEXT["test"][1][0][0].split()] if reads_sources else [])
    assert bool(second["attention"]) == reads_sources


def test_translations_continue_those_of_their_own_document(trained: Trained, tmp_path: Path) -> None:
    """References are scored after those of another as well."""
    command = ["cxmi", trained.data, "--path", trained["target"], "--cpu", "--json", tmp_path / "cxmi.json"]
    analysis.main(list(map(str, [*command, "--shifted-context"])))
    (found,) = json.loads((tmp_path / "cxmi.json").read_text(encoding="utf-8"))["systems"]
    assert found["without_one"]["cxmi"] == pytest.approx(0, abs=1e-6)
    assert abs(found["with_a_preceding_sentence"]["cxmi"]) > 1e-4
    shifted = ("--preceding-context", "shifted")
    with pytest.raises(UserError, match="--preceding-context shifted: a model that reads the preceding translations"):
        generate(trained.data, trained["target"], *shifted)
    scored = generate(trained.data, trained["target"], *shifted, "--score-reference")
    assert 10 < len(differ(scored, trained.scores("target"))) <= 17
    found = generate(trained.data, trained["target"], *shifted, "--preceding-references")
    assert differ(found, generate(trained.data, trained["target"], "--preceding-references"))


def test_a_model_of_shifted_contexts_is_validated(trained: Trained, tmp_path: Path) -> None:
    log = train(trained.data, tmp_path, *PLAIN, *TARGET, *COMMON, "--preceding-context", "shifted", "--max-epoch", 1)
    last = logged(log, "valid")[-1]
    meters = validate(trained.data, tmp_path / "checkpoint_last.pt")
    assert float(meters["valid_loss"]) == pytest.approx(float(last["valid_loss"]), abs=2e-3)
    with pytest.raises(UserError, match="--shifted-context: .* reads the preceding sentences of others already; leave"):
        analysis.main(
            ["cxmi", str(trained.data), "--path", str(tmp_path / "checkpoint_last.pt"), "--cpu", "--shifted-context"]
        )


def test_gates_are_those_of_the_sentences(trained: Trained, trained_on_documents: Trained, tmp_path: Path) -> None:
    """With the labels of their own tokens, as for a model that reads the sentences alone."""
    assert trained.data == trained_on_documents.data
    files = {name: tmp_path / name for name in ("json", "html")}
    options = [str(word) for name, path in files.items() for word in (f"--{name}", path)]
    analysis.main(
        ["gates", str(trained.data), "--path", str(trained["gated"]), "--gen-subset", "valid", "--cpu", *options]
    )
    found = json.loads(files["json"].read_text(encoding="utf-8"))
    split = Split(trained.data, "valid", "de", "en")
    labels = np.concatenate([labels_of(row) for row in split.load_language("en")])
    assert found["labels"] == {"target": int((labels == 0).sum()), "source": int((labels == 1).sum())}
    assert "&lt;pad>" not in files["html"].read_text(encoding="utf-8").replace("\\u003c", "&lt;")


def test_as_many_tokens_as_the_model_has_positions_for(trained: Trained) -> None:
    """Whatever the longest context of the batch."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(trained["target"])], arg_overrides={"data": str(trained.data)}
    )
    generator = task.build_generator([model], Namespace(beam=2, max_len_b=10))
    generator.max_len = 12
    source = torch.tensor([[5, 6, 7, 2]])
    contexts = [[8, 9, 10, 11, 12, 2], [8, 2], []]
    batch = {"net_input": {"src_tokens": source.repeat(3, 1), "src_lengths": torch.tensor([4, 4, 4])}}
    batch["preceding_target"] = data_utils.collate_tokens([torch.tensor(row, dtype=torch.long) for row in contexts], 1)
    found = generator.generate([model], batch)
    for row, context in enumerate(contexts):
        longest = min(10, 12 - 2 - len(context))
        expected = beam_search(model, source[0], context, beam=2, longest=longest)
        assert found[row][0]["tokens"].tolist() == expected[0].tokens
        assert float(found[row][0]["score"]) == pytest.approx(expected[0].score, abs=1e-5)


REFUSED = [
    (("--prefix-size", "1"), "--prefix-size: not with a model that reads the preceding translations"),
    (("--no-repeat-ngram-size", "2"), "--no-repeat-ngram-size: not with a model that reads"),
    (("--diverse-beam-groups", "2"), "--diverse-beam-groups, .*: not with a model that reads"),
    (("--match-source-len",), "--match-source-len: not with a model that reads"),
    (
        ("--min-len", "9", "--max-len-b", "8"),
        "--min-len 9: --max-len-a 0.* and --max-len-b 8 allow translations of 8 words",
    ),
    (("--print-alignment",), "--print-alignment and --replace-unk cannot be combined with a model that reads"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_searches_that_would_see_the_context_are_refused(
    trained: Trained, options: Tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        generate(trained.data, trained["target"], *options)


def test_references_are_for_translating_with_such_a_model(
    trained: Trained, trained_on_documents: Trained, tmp_path: Path
) -> None:
    refused = "--preceding-references is for fairseq-generate"
    with pytest.raises(UserError, match=f"{refused}: here"):
        interactive(trained.data, trained["target"], ["q1"], tmp_path, *SEARCH, "--preceding-references")
    with pytest.raises(UserError, match=f"{refused}: here"):
        validate(trained.data, trained["target"], "--preceding-references")
    with pytest.raises(UserError, match=f"{refused}: here"):
        train(trained.data, tmp_path, *PLAIN, *TARGET, *COMMON, "--preceding-references", "--max-epoch", 1)
    with pytest.raises(UserError, match=f"{refused} without --score-reference: here"):
        generate(trained.data, trained["target"], "--preceding-references", "--score-reference")
    with pytest.raises(UserError, match="--preceding-references needs a model trained with --concatenate-preceding-t"):
        generate(trained.data, trained_on_documents["concatenated"], "--preceding-references")


def test_several_processes_are_refused(trained: Trained) -> None:
    model, task = load(trained["target"])
    task.cfg.data, task.cfg.path = str(trained.data), str(trained["target"])
    task.load_dataset("test")
    iterator = task.get_batch_iterator(task.dataset("test"), max_sentences=8, num_shards=2)
    batch = next(iter(iterator.next_epoch_itr(shuffle=False)))
    generator = task.build_generator([model], Namespace())
    with pytest.raises(UserError, match="translates in one process: give"):
        task.inference_step(generator, [model], batch)
    task.cfg.path, task.cfg.eval_bleu = None, True
    with pytest.raises(UserError, match="train without --eval-bleu on several"):
        task.get_batch_iterator(task.dataset("test"), max_sentences=8, num_shards=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*PLAIN, TARGET[2]), "--concatenate-preceding-target needs --concatenate-preceding"),
        (
            (*PLAIN, *TARGET[:2], "--concatenate-target-number", "2"),
            "--concatenate-target-number 2 needs --concatenate-preceding-target",
        ),
        ((*PLAIN, *TARGET, "--concatenate-target-number", "0"), "--concatenate-target-number 0: it must be at least 1"),
        (
            (*PLAIN, *TARGET, "--concatenate-number", "0"),
            "--concatenate-number 0: it must be at least 1, or 0 with --concatenate-target-number",
        ),
        (
            (*PLAIN, *TRANSLATIONS, "--preceding-length-ratio", "2"),
            "--preceding-length-ratio compares a source with its preceding sentences: it would do nothing",
        ),
        (
            (*PLAIN, *TARGET[:2], "--ignore-preceding-target"),
            "--ignore-preceding-target needs --concatenate-preceding-target",
        ),
        (
            (*PLAIN, *TARGET, "--load-gate-labels", "--criterion", "gate_regularized_cross_entropy"),
            "cannot be combined with the stream 'gate', whose positions are those of one sentence",
        ),
    ],
)
def test_options_that_do_not_fit(
    trained: Trained, tmp_path: Path, options: Tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_training_is_refused(trained.data, tmp_path, options, message, capsys)


def test_the_checkpoint_decides_and_contradictions_are_refused(trained: Trained, tmp_path: Path) -> None:
    told = generate(trained.data, trained["target"], *TARGET)
    check_same_translations(trained.translations("target"), told)
    with pytest.raises(UserError, match="--concatenate-preceding-target: the checkpoint was trained without it; leave"):
        train(
            trained.data,
            tmp_path,
            *(*PLAIN, *TARGET, *COMMON, "--max-epoch", 3),
            *("--restore-file", concatenated_alone(trained, tmp_path)),
        )


def test_what_only_training_ignores_is_refused_in_translating(trained: Trained) -> None:
    with pytest.raises(UserError, match="--ignore-preceding-target is for fairseq-train"):
        generate(trained.data, trained["translations"], "--ignore-preceding-target")


def test_training_ignores_the_preceding_translations(trained: Trained) -> None:
    """It counts the tokens of the sentences themselves."""
    tokens = sum(1 + len(target.split()) for document in TEXT["train"] for _, target in document)
    for model, is_exact in (("translations", True), ("two of stock", False)):
        last = logged(trained.logs[model], "train")[-1]
        counted = float(last["train_wpb"]) * float(last["train_num_updates"]) / int(last["epoch"])
        assert (counted == pytest.approx(tokens, rel=0.02)) == is_exact


def concatenated_alone(trained: Trained, folder: Path) -> Path:
    """A model that reads the preceding source, not its translation."""
    train(trained.data, folder / "source", *PLAIN, *TARGET[:2], *COMMON, "--max-epoch", 1)
    return folder / "source" / "checkpoint_last.pt"
