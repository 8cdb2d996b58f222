"""The inter-sentence gate (ISG) through fairseq's commands: training, generation, scoring, a document line by line."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any, Tuple

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.hub_utils import GeneratorHubInterface

from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize
from tests.helpers.documents import DOCUMENTS, FIRST, ISG, TEXT, interactive_lines, write_preceding
from tests.helpers.fairseq_commands import (
    DECODING,
    EVAL_BLEU,
    GATED,
    PLAIN,
    SEARCH,
    SMOOTHED,
    TASK,
    check_batches_change_nothing,
    check_checkpoint_activations,
    check_ensemble_scores,
    check_options_train,
    check_padding_side_changes_nothing,
    check_same_translations,
    check_stream_is_loaded_without_being_told,
    check_training_is_refused,
    differ,
    generate,
    hypotheses,
    interactive,
    logged,
    new_parameters,
    printed_alignments,
    run,
    train,
    train_losses,
)
from tests.helpers.models import multiplies_float16
from tests.helpers.trained import Trained


@pytest.fixture(scope="session")
def trained(trained_on_documents: Trained) -> Trained:
    return trained_on_documents


# Training


def test_training_goes_on_from_the_baseline(trained: Trained) -> None:
    losses = train_losses(trained.logs["isg"])
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert new_parameters(trained.logs["isg"]) == (2 * (8 + 6), 2 * 8)


def test_all_mechanisms_together(trained: Trained, tmp_path: Path) -> None:
    gates = (*GATED, "--inter-sentence-gate", "--inter-sentence-layers", "2", "--regularized-layers", "1")
    smoothing = ("--smoothing", "ccwm", "--smoothing-side", "both", "--smoothing-words", "all")
    log = train(trained.data, tmp_path, *gates, *smoothing, "--load-preceding-sentences", "--max-epoch", 1)
    assert "side streams preceding, gate" in log
    assert float(logged(log)[-1]["gate_loss"]) > 0
    model = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))["model"]
    gated = {name.split(".")[2] for name in model if ".connection." in name}
    assert gated == {"0", "1"} and {name.split(".")[2] for name in model if ".inter_sentence." in name} == {"1"}
    assert len(generate(trained.data, tmp_path / "checkpoint_last.pt")) == 20


def test_a_flag_that_the_preset_sets_may_be_given(trained: Trained, tmp_path: Path) -> None:
    train(trained.data, tmp_path, *ISG, "--inter-sentence-gate", "--max-update", 1)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))
    assert state["cfg"]["model"].inter_sentence_gate
    assert any(".inter_sentence." in name for name in state["model"])


@pytest.mark.parametrize(
    "extra",
    [
        ("--decoder-layerdrop", "0.5"),
        ("--update-freq", 2),
        pytest.param(("--memory-efficient-fp16", "--fp16-init-scale", 4), marks=multiplies_float16),
        EVAL_BLEU,
    ],
)
def test_options_of_fairseq(trained: Trained, tmp_path: Path, extra: Tuple[Any, ...]) -> None:
    check_options_train(trained.data, tmp_path, ISG, extra)


def test_checkpoint_activations_change_nothing(trained: Trained, tmp_path: Path) -> None:
    check_checkpoint_activations(trained.data, tmp_path, *ISG)


def test_training_tuples_are_left_out(trained: Trained, tmp_path: Path) -> None:
    log = train(trained.data, tmp_path, *ISG, "--preceding-length-ratio", 2, "--max-update", 1)
    (left_out,) = re.findall(r"train: (\d+) of 48 sentences left out", log)
    lengths = [[len(source.split()) for source, _ in document] for document in TEXT["train"]]
    expected = sum(max(pair) > 2 * min(pair) for document in lengths for pair in zip(document, document[1:]))
    assert int(left_out) == expected > 5
    assert "valid: side streams preceding" in log and not re.findall(r"valid: .*left out", log)
    with pytest.raises(UserError, match="--preceding-length-ratio is for fairseq-train: here it would do nothing"):
        generate(trained.data, trained["isg"], "--preceding-length-ratio", 2)


# Generation


@pytest.mark.parametrize("size", [("--batch-size", "1"), ("--batch-size", "20"), ("--max-tokens", "24")])
def test_batches_change_nothing(trained: Trained, size: Tuple[str, str]) -> None:
    """Batches are made by the length of the sentence and of the preceding one, so their order changes too."""
    found = trained.translations("isg")
    assert len(found) == 20
    check_batches_change_nothing(trained.data, trained["isg"], size, found)


def test_preceding_sentences_are_loaded_without_being_told(trained: Trained, tmp_path: Path) -> None:
    check_stream_is_loaded_without_being_told(
        trained.data, trained["isg"], trained.logs["isg"], "preceding", "preceding-sentences", tmp_path
    )


def test_null_equals_documents_of_one_sentence(trained: Trained, tmp_path: Path) -> None:
    null = generate(trained.data, trained["isg"], "--model-overrides", "{'inter_sentence_ablation': 'null'}")
    alone = Path(shutil.copytree(trained.data, tmp_path / "data"))
    write_preceding(alone, {split: [1] * sum(lengths) for split, lengths in DOCUMENTS.items()})
    check_same_translations(generate(alone, trained["isg"]), null)
    own = trained.translations("isg")
    assert len(differ(null, own)) > 10
    check_same_translations({number: null[number] for number in FIRST}, {number: own[number] for number in FIRST})


@pytest.mark.parametrize("ablation", ["closed", "random"])
def test_an_ablation_changes_translations_and_batches_do_not(trained: Trained, ablation: str) -> None:
    override = ("--model-overrides", f"{{'inter_sentence_ablation': '{ablation}'}}")
    found = generate(trained.data, trained["isg"], *override)
    assert len(differ(found, trained.translations("isg"))) > 10
    check_batches_change_nothing(trained.data, trained["isg"], (*override, "--batch-size", "3"), found)


def test_closed_after_a_warm_start_is_the_baseline(trained: Trained, tmp_path: Path) -> None:
    """Trained for one update at a learning rate of zero, the model is as it started."""
    start = ("--warm-start", trained["plain"], "--share-all-embeddings", "--lr", "0", "--max-update", 1)
    train(trained.data, tmp_path, *ISG, *start)
    closed = ("--model-overrides", "{'inter_sentence_ablation': 'closed'}")
    check_same_translations(
        generate(trained.data, tmp_path / "checkpoint_last.pt", *closed), trained.translations("plain")
    )


def test_score_reference(trained: Trained) -> None:
    """The scores are those that the model gives each sentence alone, with its preceding sentence."""
    found = trained.scores("isg")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(trained["isg"])], {"data": str(trained.data)}
    )
    model.eval()
    dictionary, number = task.source_dictionary, 0
    for document in TEXT["test"]:
        preceding = torch.tensor([[dictionary.eos()] * 3])
        for source, target in document:
            tokens = [dictionary.encode_line(line, add_if_not_exist=False).long() for line in (source, target)]
            previous = torch.cat([tokens[1][-1:], tokens[1][:-1]])
            with torch.no_grad():
                output = model(
                    tokens[0][None], torch.tensor([len(tokens[0])]), previous[None], preceding_tokens=preceding
                )
                scores = model.get_normalized_probs(output, log_probs=True)[0].gather(1, tokens[1][:, None])
            assert found[number].text == target
            assert found[number].score == pytest.approx(scores.mean().item() / torch.tensor(2.0).log().item(), abs=1e-4)
            preceding = tokens[0][None]
            number += 1
    assert number == 20


@pytest.mark.parametrize("model", ["isg", "concatenated", "rnnsearch", "stock"])
def test_unknown_words_are_replaced(trained: Trained, model: str, tmp_path: Path) -> None:
    """With a penalty below 0 every word is <unk>. The source words that take their places, or what the dictionary has
    for them, are read from the raw dataset, which has a stream too. Of concatenated sentences they may be of the
    preceding one."""
    for side, lang in enumerate(("de", "en")):
        shutil.copy(trained.data / f"dict.{lang}.txt", tmp_path)
        lines = [f"{pair[side]}\n" for document in TEXT["test"] for pair in document]
        (tmp_path / f"test.de-en.{lang}").write_text("".join(lines))
    write_preceding(tmp_path, {"test": DOCUMENTS["test"]})
    dictionary = {f"q{number}": f"r{number}" for number in range(10)}
    (tmp_path / "dictionary").write_text("".join(f"{word} {other}\n" for word, other in dictionary.items()))
    command = ("--path", trained[model], *TASK, *SEARCH, "--batch-size", "8", "--unkpen", "-100")
    output = run("generate", trained.data, *command, "--print-alignment")
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", output, flags=re.MULTILINE))
    expected = {}
    for row, pairs in printed_alignments(output).items():
        words = [sources[str(row)].split()[word] for word, _ in pairs]
        expected[row] = " ".join(dictionary.get(word, word) for word in words)
    assert all(set(hypothesis.text.split()) == {"<unk>"} for hypothesis in hypotheses(output).values())

    found = run("generate", tmp_path, *command, "--dataset-impl", "raw", "--replace-unk", tmp_path / "dictionary")

    assert {row: hypothesis.text for row, hypothesis in hypotheses(found).items()} == expected
    assert {word[0] for text in expected.values() for word in text.split()} == {"q", "r"}


@pytest.mark.parametrize("scoring", [(), ("--score-reference",)])
def test_ensemble_with_a_plain_transformer(trained: Trained, scoring: Tuple[str, ...]) -> None:
    found = generate(trained.data, trained.ensemble("isg", "plain"), *scoring)
    check_same_translations(generate(trained.data, trained.ensemble("plain", "isg"), *scoring), found)
    alone = [generate(trained.data, trained[model], *scoring) for model in ("isg", "plain")]
    if scoring:
        check_ensemble_scores(found, alone)
    else:
        assert all(differ(found, one) for one in alone)


# A document on standard input


@pytest.mark.parametrize("buffer_size", [1, 7, 100])
def test_interactive_equals_generate(trained: Trained, tmp_path: Path, buffer_size: int) -> None:
    lines = interactive_lines()
    sizes = ("--buffer-size", buffer_size, "--batch-size", min(buffer_size, 4))
    found = interactive(trained.data, trained["isg"], lines, tmp_path, *SEARCH, *sizes)
    check_same_translations(dict(enumerate(h for h, line in zip(found, lines) if line)), trained.translations("isg"))


def test_interactive_with_concatenation(trained: Trained, tmp_path: Path) -> None:
    """The checkpoint keeps --concatenate-preceding."""
    lines = [source for source, _ in TEXT["test"][0]]
    found = interactive(trained.data, trained["concatenated"], lines, tmp_path, *DECODING, "--buffer-size", 8)
    expected = trained.translations("concatenated")
    check_same_translations(dict(enumerate(found)), {number: expected[number] for number in range(len(lines))})


def test_interactive_finds_diverse_beams_in_several_batches(trained: Trained, tmp_path: Path) -> None:
    """fairseq counts the beams of a batch by the numbers of its sentences, where it knows them."""
    lines = interactive_lines()[:5]
    options = (*SEARCH, "--diverse-beam-groups", 2, "--buffer-size", 5)
    one, several = (
        interactive(trained.data, trained["isg"], lines, tmp_path, *options, "--batch-size", size) for size in (5, 2)
    )
    assert [hypothesis.text for hypothesis in several] == [hypothesis.text for hypothesis in one]


def test_hub_takes_every_list_as_a_document(trained: Trained) -> None:
    """In torch.hub's interface a call does not read the sentences of an earlier call as context."""
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(trained["isg"])], {"data": str(trained.data)}
    )
    hub = GeneratorHubInterface(cfg, task, models)
    tokens = [
        task.source_dictionary.encode_line(source, add_if_not_exist=False).long() for source, _ in TEXT["test"][0]
    ]
    scores = [
        [hypotheses[0]["score"].item() / math.log(2) for hypotheses in hub.generate(tokens, beam=2, max_len_b=12)]
        for _ in range(2)
    ]
    assert scores[0] == scores[1]
    assert scores[0] == pytest.approx([trained.translations("isg")[row].score for row in range(len(tokens))], abs=1e-4)


@pytest.mark.parametrize("order", [("plain", "concatenated"), ("concatenated", "plain")], ids=" ".join)
def test_hub_refuses_an_ensemble_that_would_read_two_inputs(trained: Trained, order: Tuple[str, ...]) -> None:
    """Whichever comes first, which the task has its options from."""
    paths = [str(trained[name]) for name in order]
    with pytest.raises(UserError, match="all models of an ensemble read the same input"):
        checkpoint_utils.load_model_ensemble_and_task(paths, {"data": str(trained.data)})


def test_hub_refuses_an_option_that_the_model_would_not_read(trained: Trained) -> None:
    options = {"data": str(trained.data), "relation_ablation": "compare"}
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(trained["isg"])], options)
    hub = GeneratorHubInterface(cfg, task, models)
    with pytest.raises(UserError, match="--relation-ablation compare would do nothing: it needs --relation-fusion"):
        hub.translate(["q1"], beam=2)


def test_buffers_leave_nothing_behind(trained: Trained) -> None:
    """The calls of fairseq-interactive for each of them."""
    _, _, task = checkpoint_utils.load_model_ensemble_and_task([str(trained["isg"])], {"data": str(trained.data)})
    tokens = task.source_dictionary.encode_line("q1 q2", add_if_not_exist=False).long()
    for _ in range(20):
        task.get_interactive_tokens_and_lengths(["q1 q2"], str)
        dataset = task.build_dataset_for_inference([tokens], [len(tokens)])
        (batch,) = task.get_batch_iterator(dataset, max_sentences=1).next_epoch_itr(shuffle=False)
    assert batch["net_input"]["preceding_tokens"].tolist() == [tokens.tolist()]
    assert len(task.dataset_to_epoch_iter) == 0


# Concatenation


def test_generate_concatenates_as_training_did(trained: Trained) -> None:
    """The checkpoint keeps --concatenate-preceding; a model trained without it reads plain sentences."""
    with pytest.raises(UserError, match="--path: one model was trained with --concatenate-preceding, another without"):
        generate(trained.data, trained.ensemble("plain", "concatenated"))
    told = generate(trained.data, trained["concatenated"], "--concatenate-preceding", "</s>")
    check_same_translations(trained.translations("concatenated"), told)
    source = re.findall(
        r"^S-1\t(.*)$", run("generate", trained.data, *TASK, "--path", trained["concatenated"], *DECODING), re.M
    )
    first, second = (pair[0] for pair in TEXT["test"][0][:2])
    assert source == [f"{first} </s> {second}"] or source == [f"{first} {second}"]  # fairseq may strip the symbol
    plain = trained.translations("plain")
    assert len(differ(generate(trained.data, trained["plain"], "--concatenate-preceding", "</s>"), plain)) > 5


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*PLAIN, "--load-preceding-sentences"), "--load-preceding-sentences needs an architecture.*isg_transformer"),
        ((*GATED, "--load-preceding-sentences"), "--load-preceding-sentences needs an architecture.*isg_transformer"),
        (
            (*PLAIN, "--load-preceding-sentences", "--concatenate-preceding", "</s>"),
            "leave --load-preceding-sentences out",
        ),
        ((*ISG, "--concatenate-preceding", "</s>"), "--concatenate-preceding is for architectures without"),
        ((*PLAIN, "--concatenate-preceding", "|||"), r"--concatenate-preceding \|\|\|: the source dictionary does not"),
        ((*PLAIN, "--preceding-max-length", "50"), "--preceding-max-length need preceding sentences"),
        ((*ISG, "--preceding-length-ratio", "0.5"), "must be 0 \\(off\\) or at least 1"),
        ((*ISG, "--inter-sentence-layers", "3"), "--inter-sentence-layers 3: the model has layers 1 to 2"),
        ((*ISG, "--preceding-max-length", "0.5"), r"argument --preceding-max-length: invalid int value: '0\.5'"),
        ((*ISG, "--preceding-length-ratio", "1", "--preceding-max-length", "1"), "leave no sentence"),
    ],
)
def test_options_that_do_not_fit(
    trained: Trained, tmp_path: Path, options: Tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_training_is_refused(trained.data, tmp_path, options, message, capsys)


def test_warm_start_from_a_checkpoint_that_lacks_something(trained: Trained, tmp_path: Path) -> None:
    lost = "decoder.layers.1.encoder_attn.q_proj.weight"
    gutted = tmp_path / "gutted.pt"
    for checkpoint, option in ((trained["plain"], "--warm-start"), (trained["isg"], "--restore-file")):
        state = torch.load(checkpoint, map_location="cpu")
        del state["model"][lost]
        torch.save(state, gutted)
        with pytest.raises(Exception, match="gutted.pt") as error:
            train(trained.data, tmp_path / "models", *ISG, "--share-all-embeddings", option, gutted)
        reason = error.value if option == "--warm-start" else error.value.__context__  # fairseq's, when it resumes
        assert lost in str(reason)


def test_stream_of_other_data(trained: Trained, tmp_path: Path) -> None:
    data = Path(shutil.copytree(trained.data, tmp_path / "data"))
    pairs = [pair for document in TEXT["test"] for pair in document]
    binarize(data, {"test": pairs[::-1]}, "de", "en", joined=True)
    for lang in ("de", "en"):
        shutil.copy(trained.data / f"dict.{lang}.txt", data)
    with pytest.raises(UserError, match="test.preceding.de-en.bin was made for other data"):
        generate(data, trained["isg"])


def test_warm_start_of_shared_from_different_embeddings(trained: Trained, tmp_path: Path) -> None:
    train(trained.data, tmp_path / "apart", *PLAIN, "--max-update", 1)
    start = ("--warm-start", tmp_path / "apart" / "checkpoint_last.pt")
    with pytest.raises(UserError, match="encoder.embed_tokens.weight.* are one in the model.*different in the check"):
        train(trained.data, tmp_path, *ISG, "--share-all-embeddings", *start)


def test_stock_task_is_refused(trained: Trained, tmp_path: Path) -> None:
    translation = ("--task", "translation", "--arch", "isg_transformer_tiny", *SMOOTHED)
    with pytest.raises(UserError, match="--task context_translation"):
        train(trained.data, tmp_path, *translation)


def test_padding_side_of_the_source(trained: Trained, tmp_path: Path) -> None:
    """Preceding sentences are padded on the same side as sources."""
    check_padding_side_changes_nothing(trained.data, tmp_path, *ISG)
