"""Checkpoints of the classic stack load on this stack; checkpoints with foreign objects are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict

import pytest
import torch
from fairseq import checkpoint_utils

import ctxgates
from fairseq_ctxgates.errors import UserError
from tests.helpers.fairseq_commands import GATED, PLAIN, Hypothesis, generate, train

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


def test_same_translations() -> None:
    check_scores(generate(DATA, GATED_CHECKPOINT), SCORES["rcg_transformer_tiny"]["translations"])


def test_same_scores_of_references() -> None:
    found = generate(DATA, GATED_CHECKPOINT, "--score-reference")
    check_scores(found, SCORES["rcg_transformer_tiny"]["references"])


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
    train(DATA, tmp_path, *GATED, *SIZE, *start)
    assert (tmp_path / "checkpoint_last.pt").exists()


# A checkpoint is a pickle, and a pickle may run anything.


class MakesAFolder:
    """Unpickling this makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.skipif(
    not hasattr(torch.serialization, "add_safe_globals"), reason="torch 1.12 unpickles whatever a checkpoint holds"
)
@pytest.mark.parametrize("use", ["generate", "resume", "warm start", "average"])
def test_other_objects_are_refused_and_nothing_runs(use: str, tmp_path: Path) -> None:
    state = torch.load(GATED_CHECKPOINT, map_location="cpu")
    state["extra_state"]["more"] = MakesAFolder(tmp_path / "made")
    checkpoint = tmp_path / "checkpoint.pt"
    torch.save(state, checkpoint)
    refusal = pytest.raises(SystemExit) if use == "average" else pytest.raises(UserError, match=str(checkpoint))
    with refusal:
        if use == "generate":
            generate(DATA, checkpoint)
        elif use == "resume":
            train(DATA, tmp_path / "saved", *GATED, *SIZE, *STILL, "--restore-file", checkpoint)
        elif use == "warm start":
            train(DATA, tmp_path / "saved", *GATED, *SIZE, *STILL, "--warm-start", checkpoint)
        else:
            ctxgates.main(
                ["average-checkpoints", "--inputs", str(checkpoint), "--output", str(tmp_path / "average.pt")]
            )
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "average.pt").exists()
    torch.load(checkpoint, map_location="cpu", weights_only=False)
    assert (tmp_path / "made").exists(), "the test is worth nothing: the checkpoint is harmless"
