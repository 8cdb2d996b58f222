"""RNNSearch in training: the regularizer of context gates, fairseq's commands, warm start."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models import MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

import ctxgates
from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.context_gates.gate_regularized_cross_entropy import gate_hinge
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import (
    DECODING,
    SMOOTHED,
    TASK,
    WORDS,
    check_ensemble_scores,
    check_same_translations,
    differ,
    generate,
    hypotheses,
    logged,
    run,
    train,
    validate,
    write_gate_labels,
)
from tests.helpers.models import RETURNED_GATES, keep_float64, make_batch, make_task
from tests.helpers.reference_rnnsearch import make_rnnsearch

# --- the regularizer --------------------------------------------------------------------------------------------------

LABELLED = make_batch(
    sources=[[4, 5, 6, 7, 8], [9, 10], [11, 12, 13]],
    targets=[[14, 15, 16], [17, 18, 19, 4, 5], [6]],
    labels=[[SOURCE, TARGET, SOURCE], [TARGET, IGNORE, SOURCE, TARGET, TARGET], [SOURCE]],
)


def hinge_gradients(model: Any, criterion: Any) -> Dict[str, Tensor]:
    """What λ = 1 adds to the gradients of λ = 0."""
    gradients = []
    for weight in (0.0, 1.0):
        criterion.gate_lambda = weight
        model.zero_grad()
        criterion(model, LABELLED)[0].backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    return {name: gradients[1][name] - gradients[0][name] for name in gradients[0]}


@pytest.mark.parametrize("kind", ["source", "target", "both"])
def test_regularizer_of_context_gates(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion and labels of the Transformer: the loss is fairseq's and the hinge, whose gradient reaches the
    gate and pulls the weight of the source to its label's side."""
    keep_float64(monkeypatch)
    task = make_task(load_gate_labels=True)
    model = make_rnnsearch("ctxgate_rnnsearch", task, context_gate=kind).train()
    options = {"_name": "gate_regularized_cross_entropy", "sentence_avg": False, "label_smoothing": 0.1}
    criterion = task.build_criterion(OmegaConf.create(options)).train()

    loss, _, log = criterion(model, LABELLED)
    (weights,) = model(**LABELLED["net_input"], returns=RETURNED_GATES)[1]["context_gates"].values()
    plain = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)(model, LABELLED)[0]
    hinge = gate_hinge(weights, LABELLED["gate_labels"]).sum()
    assert float(loss.detach()) == pytest.approx(float((plain + hinge).detach()), rel=1e-5)

    gradients = hinge_gradients(model, criterion)
    for name, gradient in gradients.items():
        if ".connection." in name:
            assert gradient.abs().max() > 1e-4, name
        if "output" in name:
            assert gradient.abs().max() < 1e-9, name
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter -= 0.2 * gradients[name]
    assert float(criterion(model, LABELLED)[2]["gate_loss"]) < 0.95 * float(log["gate_loss"])


# --- fairseq's commands -----------------------------------------------------------------------------------------------

GATED = ("--arch", "ctxgate_rnnsearch_tiny", "--criterion", "gate_regularized_cross_entropy", "--load-gate-labels")
PLAIN = ("--arch", "rnnsearch_tiny", "--feedback-attention", *SMOOTHED)
ISG = ("--arch", "isg_rnnsearch_tiny", "--load-preceding-sentences", *SMOOTHED)
SMOOTHING = ("--smoothing", "ccwm", "--smoothing-side", "both", "--smoothing-words", "all")
ALL = (*GATED, "--feedback-attention", "--inter-sentence-gate", "--load-preceding-sentences", *SMOOTHING)
DOCUMENTS = {"train": 8, "valid": 2, "test": 3}
LENGTH = 6  # sentences in a document


def make_sentences(documents: int, seed: int) -> List[tuple]:
    """Sentences translated word by word, and after the first word of the sentence before in the document."""
    rng = random.Random(seed)
    pairs, before = [], 0
    for number in range(documents * LENGTH):
        words = [rng.randrange(20) for _ in range(rng.randint(1, 6))]
        target = [0 if number % LENGTH == 0 else before, *words]
        pairs.append((" ".join(WORDS["de"][word] for word in words), " ".join(WORDS["en"][word] for word in target)))
        before = words[0]
    return pairs


TEXT = {split: make_sentences(documents, seed) for seed, (split, documents) in enumerate(DOCUMENTS.items())}


class Trained(NamedTuple):
    """What the tests share. Not to be changed."""

    data: Path
    logs: Dict[str, str]
    folder: Path

    def checkpoint(self, name: str) -> Path:
        return self.folder / name / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A baseline, one with the inter-sentence gate that starts from it, one with context gates, one with smoothing, and
    one with all mechanisms."""
    folder = tmp_path_factory.mktemp("rnnsearch")
    data = binarize(folder / "data", TEXT, "de", "en", joined=True)
    write_gate_labels(data)
    files = []
    for split, documents in DOCUMENTS.items():
        (data / f"{split}.docids").write_text("".join(f"{line // LENGTH}\n" for line in range(documents * LENGTH)))
        files.append(f"{split}={data / split}.docids")
    ctxgates.main(["preceding-sentences", str(data), "-s", "de", "-t", "en", "--documents", *files])
    start = ("--warm-start", folder / "plain" / "checkpoint_last.pt")
    systems = {
        "plain": PLAIN,
        "isg": (*ISG, *start),
        "gated": GATED,
        "smoothed": ("--arch", "car_rnnsearch_tiny", "--smoothing-words", "all", *SMOOTHED),
        "all": ALL,
    }
    common = ("--share-all-embeddings", "--no-epoch-checkpoints", "--max-epoch", 6)
    logs = {name: train(data, folder / name, *options, *common) for name, options in systems.items()}
    return Trained(data, logs, folder)


@pytest.mark.parametrize("name", ["plain", "isg", "gated", "smoothed", "all"])
def test_models_learn_and_translate(trained: Trained, name: str) -> None:
    losses = [float(entry["train_loss"]) for entry in logged(trained.logs[name], "train")]
    assert losses[-1] < 0.9 * losses[0]
    found = generate(trained.data, trained.checkpoint(name))
    assert sorted(found) == list(range(len(TEXT["test"])))
    validated = float(validate(trained.data, trained.checkpoint(name))["valid_loss"])
    assert validated == pytest.approx(float(logged(trained.logs[name], "valid")[-1]["valid_loss"]), abs=2e-3)


def test_regularized_gates_are_logged(trained: Trained) -> None:
    entries = logged(trained.logs["gated"], "train")
    assert float(entries[-1]["train_gate_agreement"]) > float(entries[0]["train_gate_agreement"])
    assert all(float(entry["train_gate_loss"]) > 0 and 0 < float(entry["train_gate_mean"]) < 1 for entry in entries)


def test_interactive_follows_the_document(trained: Trained, tmp_path: Path) -> None:
    lines = [source for source, _ in TEXT["test"]]
    documents = [lines[start : start + LENGTH] for start in range(0, len(lines), LENGTH)]
    text = tmp_path / "input"
    text.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    command = (*TASK, "--path", trained.checkpoint("isg"), "--input", text, "--buffer-size", "8", *DECODING)
    found = hypotheses(run("interactive", trained.data, *command))
    lines_with_breaks = [number for number in range(len(lines) + len(documents) - 1) if number % (LENGTH + 1) != LENGTH]
    expected = generate(trained.data, trained.checkpoint("isg"))
    check_same_translations({number: found[line] for number, line in enumerate(lines_with_breaks)}, expected)


@pytest.mark.parametrize("ablation", ["null", "closed", "random"])
def test_ablations(trained: Trained, ablation: str) -> None:
    """An override when translating. A document's first sentence has the null sentence anyway."""
    full = generate(trained.data, trained.checkpoint("isg"), "--score-reference")
    override = ("--model-overrides", f"{{'inter_sentence_ablation': '{ablation}'}}")
    found = generate(trained.data, trained.checkpoint("isg"), "--score-reference", *override)
    changed = differ(found, full)
    assert len(changed) > 3
    if ablation == "null":
        assert all(number % LENGTH for number in changed)


def test_warm_start(trained: Trained, tmp_path: Path) -> None:
    """With the gate closed, a model that has not been trained since translates as the baseline; attention over the
    preceding sentence is a copy."""
    start = ("--warm-start", trained.checkpoint("plain"), "--lr", "0", "--max-update", 1, "--share-all-embeddings")
    train(trained.data, tmp_path, *ISG, *start)
    checkpoint = tmp_path / "checkpoint_last.pt"
    closed = ("--model-overrides", "{'inter_sentence_ablation': 'closed'}")
    check_same_translations(
        generate(trained.data, checkpoint, *closed), generate(trained.data, trained.checkpoint("plain"))
    )
    parameters = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["model"]
    copies = [name for name in parameters if ".inter_sentence.attention." in name]
    assert len(copies) == 4
    for name in copies:
        assert torch.equal(
            parameters[name], parameters[name.replace("source_parts.inter_sentence.attention", "attention")]
        )


def test_ensemble_with_another_model(trained: Trained) -> None:
    paths = [str(trained.checkpoint(name)) for name in ("plain", "isg", "gated")]
    found = generate(trained.data, ":".join(paths), "--score-reference")
    check_ensemble_scores(found, [generate(trained.data, path, "--score-reference") for path in paths])


@pytest.mark.parametrize("arch", ["rnnsearch", "ctxgate_rnnsearch", "isg_rnnsearch", "car_rnnsearch"])
def test_presets_by_name(arch: str) -> None:
    """What ``model: {_name: ...}`` in a YAML file gives."""
    sizes = {"": (620, 1000), "_tiny": (64, 64)}
    for suffix, size in sizes.items():
        config = MODEL_DATACLASS_REGISTRY[f"{arch}{suffix}"]()
        assert (config.encoder_embed_dim, config.encoder_hidden_size) == size
        assert str(config.context_gate) == ("both" if arch == "ctxgate_rnnsearch" else "none")
        assert config.inter_sentence_gate == config.feedback_attention == (arch == "isg_rnnsearch")


def test_options_on_the_command_line(trained: Trained, tmp_path: Path) -> None:
    """A flag that the preset sets may be given, and other options differ from it."""
    options = ("--feedback-attention", "--inter-sentence-gate", "--context-gate", "target", "--decoder-embed-dim", "32")
    train(trained.data, tmp_path, *ISG, *options, "--max-update", 1)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))
    model = state["cfg"]["model"]
    assert model.feedback_attention and model.inter_sentence_gate and str(model.context_gate) == "target"
    assert state["model"]["decoder.cell.connection.from_word.weight"].shape == (64, 32)
    assert any(".feedback_proj." in name for name in state["model"])
