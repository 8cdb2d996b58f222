"""Regularized context gates (RCG) through fairseq's commands: training, validation, generation, warm start, Hydra."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.options import get_training_parser, parse_args_and_arch
from torch import Tensor

import ctxgates
from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import (
    DECODING,
    EVAL_BLEU,
    GATED,
    PLAIN,
    TASK,
    USER_DIR,
    Hypothesis,
    check_checkpoint_activations,
    check_ensemble_scores,
    check_logged_bleu,
    check_same_parameters,
    check_same_translations,
    generate,
    hypotheses,
    logged,
    make_pairs,
    parameters,
    printed_alignments,
    run,
    train,
    train_in_two_processes,
    validate,
    write_gate_labels,
)
from tests.helpers.models import multiplies_float16
from tests.helpers.trained import Trained, train_models
from warm_python import WarmPython

METERS = ("gate_loss", "gate_mean", "gate_var", "gate_agreement", "gate_mean_agreement")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A gated model, with --eval-bleu, and a stock Transformer of the same size."""
    folder = tmp_path_factory.mktemp("trained")
    splits = {"train": make_pairs(48, 1), "valid": make_pairs(10, 2), "test": make_pairs(12, 3)}
    data = binarize(folder / "data", splits, "de", "en", joined=True)
    shutil.copytree(data, folder / "unlabelled")
    write_gate_labels(data)
    best = ("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric")
    models = {
        "gated": (*GATED, "--max-epoch", 3, *EVAL_BLEU, *best),
        "plain": (*PLAIN, "--max-epoch", 2, "--no-epoch-checkpoints"),
    }
    return train_models(data, folder, models, "--share-all-embeddings")


@pytest.fixture(scope="module")
def unlabelled(trained: Trained) -> Path:
    """The data directory without gate labels."""
    return trained.folder / "unlabelled"


@pytest.fixture(scope="module")
def translations(trained: Trained, unlabelled: Path) -> Dict[int, Hypothesis]:
    """The test set as fairseq-generate translates it, from a data directory without labels."""
    return generate(unlabelled, trained["gated"])


# Training


def test_meters_in_the_log(trained: Trained) -> None:
    for tag, prefix in (("train_inner", ""), ("train", "train_"), ("valid", "valid_")):
        entries = logged(trained.logs["gated"], tag)
        assert len(entries) == (9 if tag == "train_inner" else 3)
        for entry in entries:
            values = {meter: float(entry[prefix + meter]) for meter in METERS}
            assert 0 < values["gate_mean"] < 1 and 0 < values["gate_agreement"] < 1
            assert 0 < values["gate_var"] < 0.25 and 0 < values["gate_loss"] < 1


def test_the_regularizer_moves_the_gates_to_their_labels(trained: Trained, tmp_path: Path) -> None:
    """In the same three epochs, more than training without it does."""
    common = (*GATED, "--max-epoch", "3", "--no-epoch-checkpoints")
    ends = [
        logged(train(trained.data, tmp_path / weight, *common, "--gate-lambda", weight), "train")[-1]
        for weight in ("0", "30")
    ]
    losses, agreement = ([float(end[f"train_gate_{name}"]) for end in ends] for name in ("loss", "mean_agreement"))
    assert losses[1] < losses[0]
    assert agreement[1] > agreement[0]


def test_eval_bleu(trained: Trained, tmp_path: Path) -> None:
    """The BLEU that is logged last is that of what fairseq-generate makes of the valid split, for a model that was
    trained long enough to have some. The tests that load the first checkpoint show that its meters' NumPy numbers do
    not hinder."""
    check_logged_bleu(trained.data, trained["gated"], trained.logs["gated"])
    assert (trained.folder / "gated" / "checkpoint_best.pt").exists()
    resume = (
        "--restore-file",
        trained["gated"],
        "--share-all-embeddings",
        "--max-epoch",
        25,
        "--validate-interval",
        25,
    )
    log = train(trained.data, tmp_path, *GATED, *EVAL_BLEU, *resume, "--no-epoch-checkpoints")
    assert float(logged(log, "valid")[-1]["valid_bleu"]) > 1
    check_logged_bleu(trained.data, tmp_path / "checkpoint_last.pt", log)


def test_resumed_run_equals_uninterrupted(trained: Trained, tmp_path: Path) -> None:
    resume = ("--restore-file", trained.folder / "gated" / "checkpoint1.pt", "--max-epoch", 3, "--share-all-embeddings")
    log = train(trained.data, tmp_path, *GATED, *resume, "--no-epoch-checkpoints")
    expected = [(entry["loss"], entry["gate_loss"]) for entry in logged(trained.logs["gated"])]
    assert [(entry["loss"], entry["gate_loss"]) for entry in logged(log)] == expected[3:]
    check_same_parameters(parameters(tmp_path / "checkpoint_last.pt"), parameters(trained["gated"]))


def test_checkpoint_activations(trained: Trained, tmp_path: Path) -> None:
    arguments = ("--checkpoint-activations", "--share-all-embeddings", "--max-epoch", 1)
    entries = logged(train(trained.data, tmp_path, *GATED, *arguments))
    assert len(entries) == 3
    for found, expected in zip(entries, logged(trained.logs["gated"])):
        assert {meter: found[meter] for meter in ("loss", "gnorm", *METERS)} == {
            meter: expected[meter] for meter in ("loss", "gnorm", *METERS)
        }
    check_checkpoint_activations(trained.data, tmp_path, *GATED, "--share-all-embeddings")


def test_layer_drop(trained: Trained, unlabelled: Path, tmp_path: Path) -> None:
    drop = ("--encoder-layerdrop", "0.3", "--decoder-layerdrop", "0.7", "--max-epoch", 4, "--no-epoch-checkpoints")
    log = train(trained.data, tmp_path, *GATED, *drop)
    # Of 12 updates some ran no decoder layer at all: there was no gate, and nothing to regularize.
    assert min(float(entry["gate_loss"]) for entry in logged(log)) == 0
    assert max(float(entry["gate_loss"]) for entry in logged(log)) > 0
    checkpoint = tmp_path / "checkpoint_last.pt"
    keep = {"encoder_layers_to_keep": "0,1", "decoder_layers_to_keep": "1"}
    overrides = {"data": str(unlabelled), **keep}
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)
    saved = parameters(checkpoint)
    kept = {name.replace(".layers.1.", ".layers.0."): saved[name] for name in saved if "decoder.layers.1." in name}
    check_same_parameters(
        {name: value for name, value in model.state_dict().items() if "decoder.layers." in name}, kept
    )
    found = generate(unlabelled, checkpoint, "--model-overrides", keep)
    assert len(found) == 12


@multiplies_float16
def test_float16_logs_the_losses_of_float32(trained: Trained, tmp_path: Path) -> None:
    """Without a GPU fairseq trains in half precision only with --memory-efficient-fp16."""
    common = (*GATED, "--share-all-embeddings", "--max-epoch", 1, "--no-epoch-checkpoints")
    log = train(trained.data, tmp_path, *common, "--memory-efficient-fp16", "--fp16-init-scale", "4")
    found, expected = logged(log), logged(trained.logs["gated"])[:3]
    assert [float(entry["loss"]) for entry in found] == pytest.approx([float(e["loss"]) for e in expected], rel=0.02)
    for meter in ("gate_mean", "gate_var", "gate_loss"):  # which are rounded to four digits after the point
        assert float(found[0][meter]) == pytest.approx(float(expected[0][meter]), rel=0.02, abs=1.1e-4)


# The same three updates: on the whole corpus at once, in six parts one after the other, in two processes.
WHOLE_CORPUS = (*GATED, "--dropout", "0", "--max-epoch", "3", "--no-epoch-checkpoints")


@pytest.fixture(scope="module")
def whole_corpus(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("whole")
    log = train(trained.data, folder, *WHOLE_CORPUS, "--batch-size", "48")
    return logged(log), parameters(folder / "checkpoint_last.pt")


def check_same_training(found: List[Dict[str, Any]], found_parameters: Dict[str, Tensor], expected: Any) -> None:
    entries, expected_parameters = expected
    assert len(found) == len(entries) == 3
    for entry, expected_entry in zip(found, entries):
        for meter in ("loss", "nll_loss", "gnorm", *METERS):
            assert float(entry[meter]) == pytest.approx(float(expected_entry[meter]), abs=0.0011), meter
    check_same_parameters(found_parameters, expected_parameters, 1e-4)


def test_six_parts_in_one_update_train_as_the_whole(trained: Trained, whole_corpus: Any, tmp_path: Path) -> None:
    log = train(trained.data, tmp_path, *WHOLE_CORPUS, "--batch-size", "8", "--update-freq", "6")
    check_same_training(logged(log), parameters(tmp_path / "checkpoint_last.pt"), whole_corpus)


def test_two_processes(trained: Trained, whole_corpus: Any, tmp_path: Path, warm_python: WarmPython) -> None:
    parts = ("--batch-size", "8", "--update-freq", "3")
    log = train_in_two_processes(warm_python.python, trained.data, tmp_path, *WHOLE_CORPUS, *parts)
    check_same_training(logged(log), parameters(tmp_path / "checkpoint_last.pt"), whole_corpus)


# Validation and decoding


@pytest.mark.parametrize("override", ["{}", "{'dropout': 0.3}", "{'gate_lambda': 3.0}"])
def test_validation_gives_what_training_logged_whatever_the_overrides(trained: Trained, override: str) -> None:
    """Without options of its own it finds the labels, since the checkpoint says that it was trained with them. Dropout
    and the weight of the regularizer, options of the model and of the criterion, change nothing in validation."""
    last = logged(trained.logs["gated"], "valid")[-1]
    found = validate(trained.data, trained["gated"], "--model-overrides", override)
    for meter in ("loss", *METERS):
        assert float(found[f"valid_{meter}"]) == pytest.approx(float(last[f"valid_{meter}"]), abs=2e-3)


def test_validate_without_labels(trained: Trained, unlabelled: Path) -> None:
    found = validate(unlabelled, trained["gated"])
    last = logged(trained.logs["gated"], "valid")[-1]
    assert float(found["valid_loss"]) == pytest.approx(float(last["valid_loss"]), abs=2e-3)
    assert "valid_gate_mean" in found and "valid_gate_loss" not in found


def test_interactive_equals_generate(
    trained: Trained, unlabelled: Path, translations: Dict[int, Hypothesis], tmp_path: Path
) -> None:
    text = tmp_path / "input"
    text.write_text("".join(f"{source}\n" for source, _ in make_pairs(12, 3)))
    command = (*TASK, "--path", trained["gated"], "--input", text, "--buffer-size", "12", *DECODING)
    output = run("interactive", unlabelled, *command, "--model-overrides", "{'dropout': 0.3}")
    check_same_translations(hypotheses(output), translations)


def test_score_reference(trained: Trained, unlabelled: Path) -> None:
    found = generate(unlabelled, trained["gated"], "--score-reference")
    assert {number: hypothesis.text for number, hypothesis in found.items()} == {
        number: target for number, (_, target) in enumerate(make_pairs(12, 3))
    }
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(trained["gated"])], {"data": str(unlabelled)}
    )
    task.load_dataset("test")
    dataset = task.dataset("test")
    model.eval()
    for number, hypothesis in found.items():
        sample = dataset.collater([dataset[number]])
        with torch.no_grad():
            log_probabilities = model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)
        score = (
            log_probabilities.gather(2, sample["target"].unsqueeze(2)).mean().item() / torch.tensor(2.0).log().item()
        )
        assert hypothesis.score == pytest.approx(score, abs=1e-4)


def test_print_alignment(trained: Trained, unlabelled: Path, translations: Dict[int, Hypothesis]) -> None:
    align = ("--print-alignment", "hard")
    output = run("generate", unlabelled, *TASK, "--path", trained["gated"], *DECODING, *align)
    check_same_translations(hypotheses(output), translations)
    for number, (source, _) in enumerate(make_pairs(12, 3)):
        pairs = printed_alignments(output)[number]
        assert [target for _, target in pairs] == list(range(len(translations[number].text.split())))
        assert all(0 <= position < len(source.split()) for position, _ in pairs)


@pytest.mark.parametrize("order", ["gated first", "plain first"])
def test_ensemble_of_gated_and_plain(trained: Trained, unlabelled: Path, order: str) -> None:
    models = ("gated", "plain") if order == "gated first" else ("plain", "gated")
    found = generate(unlabelled, trained.ensemble(*models), "--score-reference")
    check_ensemble_scores(found, [trained.scores(model) for model in models])


def test_average_of_checkpoints_translates(trained: Trained, unlabelled: Path, tmp_path: Path) -> None:
    average = tmp_path / "average.pt"
    inputs = ("--inputs", str(trained.folder / "gated"), "--num-epoch-checkpoints", "2")
    ctxgates.main(["average-checkpoints", *inputs, "--output", str(average)])
    second, third = (parameters(trained.folder / "gated" / f"checkpoint{epoch}.pt") for epoch in (2, 3))
    check_same_parameters(parameters(average), {name: (second[name] + third[name]) / 2 for name in second}, 1e-6)
    assert len(generate(unlabelled, average)) == 12


# Starting from other checkpoints


def changed(checkpoint: Path, path: Path, change: Any) -> Path:
    """A copy of a checkpoint whose parameters a function has changed."""
    state = torch.load(checkpoint, map_location="cpu")
    change(state["model"])
    torch.save(state, path)
    return path


def test_warm_start(trained: Trained, tmp_path: Path) -> None:
    start = ("--warm-start", trained["plain"], "--lr", "0", "--max-update", 1, "--share-all-embeddings")
    train(trained.data, tmp_path, *GATED, *start)
    plain, found = parameters(trained["plain"]), parameters(tmp_path / "checkpoint_last.pt")
    gates = {name for name in found if ".connection." in name}
    assert len(gates) == 8
    duplicates = re.compile(r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")  # fairseq 0.12.2
    expected = {name: value for name, value in plain.items() if not duplicates.fullmatch(name)}
    check_same_parameters({name: value for name, value in found.items() if name not in gates}, expected)


def test_a_checkpoint_that_takes_the_place_of_a_warm_start_is_said(trained: Trained, tmp_path: Path) -> None:
    start = ("--warm-start", trained["plain"], "--max-update", 1, "--share-all-embeddings")
    log = train(trained.data, tmp_path, *GATED, *start)
    assert "warm start from" in log and "take the place" not in log
    own = (tmp_path / "checkpoint_last.pt").rename(tmp_path / "own.pt")
    log = train(trained.data, tmp_path, *GATED, *start, "--finetune-from-model", own)
    said = f"other parameters take the place of those of --warm-start {trained['plain']}"
    assert said in log
    assert said in train(trained.data, tmp_path, *GATED, *start, "--max-update", 2)  # resumed


def test_warm_start_from_a_checkpoint_that_lacks_something(trained: Trained, tmp_path: Path) -> None:
    lost = "decoder.layers.1.fc1.weight"
    checkpoint = changed(trained["plain"], tmp_path / "gutted.pt", lambda model: model.pop(lost))
    with pytest.raises(UserError, match=f"gutted.pt.*lacks {lost}$"):
        train(trained.data, tmp_path, *GATED, "--share-all-embeddings", "--warm-start", checkpoint)


SOMETHING_ELSE = [  # what computes something else with the same parameters, of which no shape shows it
    ("--decoder-attention-heads 4", "--decoder-attention-heads 2, and the model has 4"),
    ("--decoder-norm-order inner", "--decoder-norm-order post, and the model has inner"),
    ("--activation-fn gelu", "--activation-fn relu, and the model has gelu"),
    ("--no-scale-embedding", "--no-scale-embedding False, and the model has True"),
]


@pytest.mark.parametrize("options, message", SOMETHING_ELSE)
def test_warm_start_from_a_checkpoint_that_computes_something_else(
    options: str, message: str, trained: Trained, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"{trained['plain']}: its model was trained with {message}, with which"):
        train(
            trained.data, tmp_path, *GATED, *options.split(), "--share-all-embeddings", "--warm-start", trained["plain"]
        )


@pytest.mark.parametrize("options, message", SOMETHING_ELSE)
def test_a_training_is_not_resumed_as_something_else(
    options: str, message: str, trained: Trained, tmp_path: Path
) -> None:
    shutil.copy(trained.folder / "gated" / "checkpoint1.pt", tmp_path / "checkpoint_last.pt")
    command = (*GATED, "--share-all-embeddings", *options.split())
    with pytest.raises(UserError, match=f"the checkpoint was trained with {message}, .* with --finetune-from-model$"):
        train(trained.data, tmp_path, *command)


@pytest.mark.parametrize("start", [("--finetune-from-model",), ("--reset-optimizer", "--restore-file")])
def test_a_new_training_from_a_model_may_be_something_else(
    start: Sequence[str], trained: Trained, tmp_path: Path
) -> None:
    command = (*GATED, "--share-all-embeddings", "--activation-fn", "gelu", "--max-update", 1, "--lr", "0")
    train(trained.data, tmp_path, *command, *start, trained["gated"])
    check_same_parameters(parameters(tmp_path / "checkpoint_last.pt"), parameters(trained["gated"]))


def test_warm_start_from_a_checkpoint_of_another_size(trained: Trained, tmp_path: Path) -> None:
    other = ("--encoder-ffn-embed-dim", "32", "--decoder-ffn-embed-dim", "64", "--share-all-embeddings")
    with pytest.raises(UserError, match="checkpoint_last.pt.*shapes: encoder.layers.0.fc1.weight, ") as error:
        train(trained.data, tmp_path, *GATED, *other, "--warm-start", trained["plain"])
    assert "decoder." not in str(error.value)


def test_warm_start_from_a_checkpoint_of_more_layers(trained: Trained, tmp_path: Path) -> None:
    other = ("--decoder-layers", "1", "--share-all-embeddings")
    with pytest.raises(UserError, match="checkpoint_last.pt.*decoder.layers.1.fc1.weight"):
        train(trained.data, tmp_path, *GATED, *other, "--warm-start", trained["plain"])


def test_gutted_checkpoints_are_refused(trained: Trained, unlabelled: Path, tmp_path: Path) -> None:
    """Resuming and generating stay strict, also about the parameters that a warm start may lack."""
    lost = "decoder.layers.0.connection.fc2.bias"
    checkpoint = changed(
        trained.folder / "gated" / "checkpoint1.pt", tmp_path / "gutted.pt", lambda model: model.pop(lost)
    )
    with pytest.raises(Exception, match="Cannot load model parameters"):
        train(trained.data, tmp_path, *GATED, "--share-all-embeddings", "--restore-file", checkpoint)
    with pytest.raises(RuntimeError, match=lost):
        generate(unlabelled, checkpoint)


# What is refused


def test_training_without_labels(trained: Trained, unlabelled: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="train.gate.de-en.idx not found.*ctxgates gate-labels"):
        train(unlabelled, tmp_path, *GATED)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--arch", "transformer_tiny"), "--arch rcg_transformer"),
        (("--arch", "context_transformer_tiny"), "--arch rcg_transformer"),
        (("--regularized-layers", "9"), "--regularized-layers 9.*1 to 2"),
    ],
    ids=["stock transformer", "context_transformer", "layer 9"],
)
def test_criterion_and_model_that_do_not_fit(
    trained: Trained, tmp_path: Path, arguments: List[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train(trained.data, tmp_path, *GATED, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["generate", "interactive", "validate"])
def test_override_that_nothing_reads(trained: Trained, command: str) -> None:
    options = ("--path", trained["gated"], *TASK, "--cpu", "--num-workers", "0")
    with pytest.raises(UserError, match="--model-overrides.*'context_gat'"):
        run(
            command,
            trained.data,
            *options,
            "--batch-size",
            "1",
            "--model-overrides",
            "{'context_gat': 'none', 'dropout': 0.3}",
        )


@pytest.mark.process
def test_an_analysis_prints_its_result_only(trained: Trained, tmp_path: Path) -> None:
    """No messages of fairseq's, nor of packages that are imported after it has set the level of all. Only a process
    that has imported nothing before shows them."""
    command = [sys.executable, "-m", "ctxgates", "analyze", "gates", trained.data, "--path", trained["gated"]]
    command += ["--cpu", "--figure", tmp_path / "gates.png"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"written: {tmp_path / 'gates.png'}"


@pytest.mark.parametrize("option", ["--cross-self-attention", "--no-cross-attention", "--encoder-xformers-att-config"])
def test_options_that_are_not_offered(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args_and_arch(get_training_parser(), ["data", *TASK, *GATED, option])
    assert f"unrecognized arguments: {option}" in capsys.readouterr().err


# Hydra. In processes of their own, because it composes before it imports the user directory.


def hydra_train(python: str, folder: Path, *arguments: str) -> str:
    command = [python, "-m", "fairseq_cli.hydra_train", *arguments, f"common.user_dir={USER_DIR}"]
    command += ["common.cpu=true", "dataset.num_workers=0", "dataset.batch_size=16", "optimization.max_update=1"]
    completed = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert completed.returncode == 0, completed.stdout
    return completed.stdout


def model_of(checkpoint: Path) -> Any:
    return checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["cfg"]["model"]


def test_hydra_with_the_yaml_file_shipped(trained: Trained, tmp_path: Path, warm_python: WarmPython) -> None:
    config = ("--config-dir", f"{USER_DIR}/config", "--config-name", "multi30k_rcg")
    shutil.copytree(trained.data, tmp_path / "data-bin")
    paths = ("task.data=data-bin", "checkpoint.save_dir=saved")
    assert "gate_agreement" in hydra_train(warm_python.python, tmp_path, *config, *paths, "model.decoder_layers=2")
    checkpoint = tmp_path / "saved" / "checkpoint_last.pt"
    model = model_of(checkpoint)
    assert (model.context_gate, model.encoder_layers, model.decoder_layers) == ("interpolate", 3, 2)
    shape = parameters(checkpoint)["decoder.layers.1.connection.fc1.weight"].shape
    assert shape == (512, 2 * 256)


def test_hydra_with_a_preset_by_name(trained: Trained, tmp_path: Path, warm_python: WarmPython) -> None:
    (tmp_path / "tiny.yaml").write_text(
        f"""
task: {{_name: context_translation, data: {trained.data}, source_lang: de, target_lang: en, load_gate_labels: true}}
model: {{_name: rcg_transformer_tiny, decoder_layers: 1}}
criterion: {{_name: gate_regularized_cross_entropy, label_smoothing: 0.1}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
checkpoint: {{save_dir: {tmp_path / "saved"}}}
"""
    )
    hydra_train(warm_python.python, tmp_path, "--config-dir", str(tmp_path), "--config-name", "tiny")
    model = model_of(tmp_path / "saved" / "checkpoint_last.pt")
    assert (model.context_gate, model.encoder_embed_dim) == ("interpolate", 64)
    assert (model.encoder_layers, model.decoder_layers) == (2, 1)
