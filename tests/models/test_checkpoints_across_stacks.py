"""Checkpoints of the classic stack load on this stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest
import torch
from fairseq import checkpoint_utils

from tests.helpers.fairseq_commands import GATED, PLAIN, Hypothesis, generate, new_parameters, train

CLASSIC = Path(__file__).parent.parent / "data" / "classic"
DATA = CLASSIC / "data-bin"
GATED_CHECKPOINT, PLAIN_CHECKPOINT = CLASSIC / "rcg_transformer_tiny.pt", CLASSIC / "transformer_tiny.pt"
SCORES = json.loads((CLASSIC / "scores.json").read_text())
SIZE = (
    *("--encoder-embed-dim", "24", "--encoder-ffn-embed-dim", "24", "--encoder-layers", "1", "--share-all-embeddings"),
    *("--decoder-embed-dim", "24", "--decoder-ffn-embed-dim", "24", "--decoder-layers", "2"),
)
NO_VALIDATION = ("--valid-subset", "test", "--disable-validation")
STILL = ("--lr", "0", "--max-update", "1", *NO_VALIDATION)


def check_scores(found: Dict[int, Hypothesis], expected: Dict[str, Any]) -> None:
    assert {str(number) for number in found} == set(expected)
    for number, (score, text) in expected.items():
        assert found[int(number)].text == text
        assert found[int(number)].score == pytest.approx(score, abs=1e-4)


def test_loads_strictly() -> None:
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(GATED_CHECKPOINT)], {"data": str(DATA)}, strict=True
    )
    saved = torch.load(GATED_CHECKPOINT, map_location="cpu")["model"]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, saved[name]), name


@pytest.mark.slow
def test_same_translations() -> None:
    check_scores(generate(DATA, GATED_CHECKPOINT), SCORES["rcg_transformer_tiny"]["translations"])


def test_same_scores_of_references() -> None:
    found = generate(DATA, GATED_CHECKPOINT, "--score-reference")
    check_scores(found, SCORES["rcg_transformer_tiny"]["references"])


@pytest.mark.slow
def test_warm_start_from_stock_transformer(tmp_path: Path) -> None:
    """With no mechanism the warm-started model is the stock Transformer of the classic stack."""
    plain = ("--arch", "context_transformer_tiny", *PLAIN[2:], *SIZE, *STILL)
    train(DATA, tmp_path, *plain, "--warm-start", PLAIN_CHECKPOINT)
    found = generate(DATA, tmp_path / "checkpoint_last.pt")
    check_scores(found, SCORES["transformer_tiny"]["translations"])
    found = generate(DATA, tmp_path / "checkpoint_last.pt", "--score-reference")
    check_scores(found, SCORES["transformer_tiny"]["references"])


def test_training_goes_on_from_a_warm_start(tmp_path: Path) -> None:
    start = ("--warm-start", PLAIN_CHECKPOINT, "--max-update", "2", *NO_VALIDATION)
    log = train(DATA, tmp_path, *GATED, *SIZE, *start)
    assert new_parameters(log) == (8, 0), "two matrices and two biases of each of two gates"
    assert (tmp_path / "checkpoint_last.pt").exists()
