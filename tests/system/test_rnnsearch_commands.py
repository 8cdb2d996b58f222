"""RNNSearch through fairseq's commands: training, generation, ensembles, warm start, options."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import MODEL_DATACLASS_REGISTRY

from tests.helpers.documents import COMMON, DOCUMENTS, FIRST, ISG_RNNSEARCH, interactive_lines
from tests.helpers.fairseq_commands import (
    SEARCH,
    SMOOTHED,
    check_ensemble_scores,
    check_same_translations,
    differ,
    generate,
    interactive,
    logged,
    train,
    train_losses,
    validate,
)
from tests.helpers.trained import Trained, train_models

GATED = ("--arch", "ctxgate_rnnsearch_tiny", "--criterion", "gate_regularized_cross_entropy", "--load-gate-labels")
PLAIN = ("--arch", "rnnsearch_tiny", "--feedback-attention", *SMOOTHED)
SMOOTHING = ("--smoothing", "ccwm", "--smoothing-side", "both", "--smoothing-words", "all")
ALL = (*GATED, "--feedback-attention", "--inter-sentence-gate", "--load-preceding-sentences", *SMOOTHING)


@pytest.fixture(scope="module")
def trained(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A plain RNNSearch; one with the inter-sentence gate, warm-started from the plain one; one with context gates; one
    with smoothing; and one with all mechanisms."""
    folder = tmp_path_factory.mktemp("rnnsearch")
    models = {
        "plain": PLAIN,
        "isg": (*ISG_RNNSEARCH, "--warm-start", folder / "plain" / "checkpoint_last.pt"),
        "gated": GATED,
        "smoothed": ("--arch", "car_rnnsearch_tiny", "--smoothing-words", "all", *SMOOTHED),
        "all": ALL,
    }
    return train_models(documents, folder, models, *COMMON, "--max-epoch", 6)


@pytest.mark.parametrize("name", ["plain", "isg", "gated", "smoothed", "all"])
def test_models_learn_and_translate(trained: Trained, name: str) -> None:
    losses = train_losses(trained.logs[name])
    assert losses[-1] < 0.9 * losses[0]
    found = trained.translations(name)
    assert sorted(found) == list(range(sum(DOCUMENTS["test"])))
    validated = float(validate(trained.data, trained[name])["valid_loss"])
    assert validated == pytest.approx(float(logged(trained.logs[name], "valid")[-1]["valid_loss"]), abs=2e-3)


def test_regularized_gates_are_logged(trained: Trained) -> None:
    entries = logged(trained.logs["gated"], "train")
    assert float(entries[-1]["train_gate_mean_agreement"]) > float(entries[0]["train_gate_mean_agreement"])
    assert all(float(entry["train_gate_loss"]) > 0 and 0 < float(entry["train_gate_mean"]) < 1 for entry in entries)


def test_interactive_follows_the_document(trained: Trained, tmp_path: Path) -> None:
    lines = interactive_lines()
    sizes = ("--buffer-size", 8, "--batch-size", 8)
    found = interactive(trained.data, trained["isg"], lines, tmp_path, *SEARCH, *sizes)
    expected = trained.translations("isg")
    check_same_translations(dict(enumerate(h for h, line in zip(found, lines) if line)), expected)


@pytest.mark.parametrize("ablation", ["null", "closed", "random"])
def test_an_ablation_changes_scores_but_null_none_of_first_sentences(trained: Trained, ablation: str) -> None:
    """The ablation null changes no sentence that is its document's first."""
    full = trained.scores("isg")
    override = ("--model-overrides", f"{{'inter_sentence_ablation': '{ablation}'}}")
    found = generate(trained.data, trained["isg"], "--score-reference", *override)
    changed = differ(found, full)
    assert len(changed) > 3
    if ablation == "null":
        assert not set(FIRST) & set(changed)


def test_warm_start(trained: Trained, tmp_path: Path) -> None:
    """With the gate closed, a model that has not been trained since translates as the baseline; attention over the
    preceding sentence is a copy."""
    start = ("--warm-start", trained["plain"], "--lr", "0", "--max-update", 1, "--share-all-embeddings")
    train(trained.data, tmp_path, *ISG_RNNSEARCH, *start)
    checkpoint = tmp_path / "checkpoint_last.pt"
    closed = ("--model-overrides", "{'inter_sentence_ablation': 'closed'}")
    check_same_translations(generate(trained.data, checkpoint, *closed), trained.translations("plain"))
    parameters = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["model"]
    copies = [name for name in parameters if ".inter_sentence.attention." in name]
    assert len(copies) == 4
    for name in copies:
        of_sentence = name.replace("source_parts.inter_sentence.attention", "attention")
        assert torch.equal(parameters[name], parameters[of_sentence])


def test_ensemble_with_another_model(trained: Trained) -> None:
    models = ("plain", "isg", "gated")
    found = generate(trained.data, trained.ensemble(*models), "--score-reference")
    check_ensemble_scores(found, [trained.scores(name) for name in models])


@pytest.mark.parametrize("arch", ["rnnsearch", "ctxgate_rnnsearch", "isg_rnnsearch", "car_rnnsearch"])
def test_presets_by_name(arch: str) -> None:
    """The configuration that ``model: {_name: ...}`` in a YAML file gives."""
    sizes = {"": (620, 1000), "_tiny": (64, 64)}
    for suffix, size in sizes.items():
        config = MODEL_DATACLASS_REGISTRY[f"{arch}{suffix}"]()
        assert (config.encoder_embed_dim, config.encoder_hidden_size) == size
        assert str(config.context_gate) == ("both" if arch == "ctxgate_rnnsearch" else "none")
        assert config.inter_sentence_gate == config.feedback_attention == (arch == "isg_rnnsearch")


def test_options_on_the_command_line(trained: Trained, tmp_path: Path) -> None:
    """A flag that the preset sets may be given, and other options differ from it."""
    options = ("--feedback-attention", "--inter-sentence-gate", "--context-gate", "target", "--decoder-embed-dim", "32")
    train(trained.data, tmp_path, *ISG_RNNSEARCH, *options, "--max-update", 1)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))
    model = state["cfg"]["model"]
    assert model.feedback_attention and model.inter_sentence_gate and str(model.context_gate) == "target"
    assert state["model"]["decoder.cell.connection.from_word.weight"].shape == (64, 32)
    assert any(".feedback_proj." in name for name in state["model"])
