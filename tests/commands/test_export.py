"""``ctxgates export``: a model without mechanisms as a checkpoint of stock fairseq."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Tuple

import fairseq
import pytest
import torch
from fairseq import checkpoint_utils

import ctxgates
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import DECODING, GATED, SMOOTHED, make_pairs, write_gate_labels
from tests.helpers.trained import Trained, train_models
from warm_python import WarmPython

ONE_EPOCH = ("--share-all-embeddings", "--no-epoch-checkpoints", "--max-epoch", "1")
MODELS = {
    "plain": ("--arch", "context_transformer_tiny", "--decoder-normalize-before", *SMOOTHED),
    "post": ("--arch", "context_transformer_tiny", *SMOOTHED),
    "gated": GATED,
    "inner": ("--arch", "context_transformer_tiny", "--decoder-norm-order", "inner", *SMOOTHED),
    "rnnsearch": ("--arch", "rnnsearch_tiny", *SMOOTHED),
    "stock": ("--arch", "transformer_tiny", *SMOOTHED),
    "align": ("--arch", "context_transformer_align_tiny", "--alignment-layer", "1", *SMOOTHED),
    "concatenating": ("--arch", "context_transformer_tiny", "--concatenate-preceding", "q1", *SMOOTHED),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("export")
    pairs = {"train": make_pairs(16, 1), "valid": make_pairs(4, 2), "test": make_pairs(8, 3)}
    data = binarize(folder / "data", pairs, "de", "en", joined=True)
    write_gate_labels(data)
    ctxgates.main(["preceding-sentences", str(data), "-s", "de", "-t", "en", "--one-document"])
    return train_models(data, folder, MODELS, *ONE_EPOCH)


def export(path: Path, output: Path, *options: str) -> None:
    ctxgates.main(["export", "--path", str(path), "--output", str(output), *options])


@pytest.mark.process
def test_stock_fairseq_translates_alike_without_user_dir(
    trained: Trained, tmp_path: Path, warm_python: WarmPython
) -> None:
    export(trained["plain"], tmp_path / "stock.pt")
    command = [warm_python.python, "-m", "fairseq_cli.generate", trained.data, "-s", "de", "-t", "en"]
    command += ["--path", tmp_path / "stock.pt", *DECODING]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = [line.split("\t") for line in done.stdout.splitlines() if line.startswith("H-")]
    found: Dict[int, Tuple[float, str]] = {int(name[2:]): (float(score), text) for name, score, text in lines}
    expected = trained.translations("plain")
    assert len(found) == len(expected) == 8  # stock drops what is over a multiple of 8
    for number, hypothesis in expected.items():
        assert found[number] == (pytest.approx(hypothesis.score, abs=1e-5), hypothesis.text)


def test_nothing_in_it_needs_code(trained: Trained, tmp_path: Path) -> None:
    """Also torch's own protection, which refuses fairseq's checkpoints, loads it."""
    export(trained["plain"], tmp_path / "stock.pt")

    def check(value: object) -> None:
        if isinstance(value, dict):
            for key, entry in value.items():
                assert type(key) is str
                check(entry)
        elif isinstance(value, list):
            for entry in value:
                check(entry)
        else:
            assert isinstance(value, (str, int, float, bool, type(None), torch.Tensor)), type(value)

    state = torch.load(tmp_path / "stock.pt", map_location="cpu")
    check(state)
    assert (state["cfg"]["model"]["_name"], state["cfg"]["task"]["_name"]) == ("transformer", "translation")
    assert state["cfg"]["common"]["user_dir"] is None
    assert not [option for option in state["cfg"]["model"] if "gate" in option or "relation" in option]


def test_what_ctranslate2_reads(trained: Trained, tmp_path: Path) -> None:
    """Read as its converter (4.8.5, converters/fairseq.py) does: the model that comes out computes the same."""
    export(trained["post"], tmp_path / "namespace.pt", "--for-ctranslate2")
    trusting: Dict[str, Any] = {} if torch.__version__ < "2" else {"weights_only": False}
    checkpoint = torch.load(tmp_path / "namespace.pt", map_location="cpu", **trusting)
    args = checkpoint["args"] or checkpoint["cfg"]["model"]
    args.data, args.source_lang, args.target_lang = str(trained.data), "de", "en"
    assert fairseq.models.ARCH_MODEL_NAME_REGISTRY[args.arch] == "transformer"
    assert args.encoder_normalize_before == args.decoder_normalize_before
    assert args.encoder_attention_heads == args.decoder_attention_heads
    model = fairseq.models.build_model(args, fairseq.tasks.setup_task(args))
    model.eval()
    model.load_state_dict(checkpoint["model"])
    (expected,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(trained["post"])], arg_overrides={"data": str(trained.data)}
    )
    expected.eval()
    inputs = torch.tensor([[5, 6, 7, 2]]), torch.tensor([4]), torch.tensor([[2, 8, 9]])
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs)[0], expected(*inputs)[0], rtol=0, atol=1e-5)


def test_a_damaged_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": {"weight": torch.zeros(1000)}}, tmp_path / "a.pt")
    (tmp_path / "a.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:2000])
    with pytest.raises(SystemExit):
        export(tmp_path / "a.pt", tmp_path / "stock.pt")
    error = capsys.readouterr().err
    assert f"{tmp_path / 'a.pt'} is damaged (" in error and "average" not in error


def test_a_checkpoint_is_not_exported_onto_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pt").write_text("trained for a week")
    (tmp_path / "link").symlink_to("a.pt")
    for output, message in (("link", "is the checkpoint of --path"), (".", "is a folder: name a file in it")):
        with pytest.raises(SystemExit):
            export(tmp_path / "a.pt", tmp_path / output)
        assert f"error: --output {tmp_path / output} {message}" in capsys.readouterr().err
    assert (tmp_path / "a.pt").read_text() == "trained for a week"


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        ("gated", ["rcg_transformer_tiny", "parts that fairseq's transformer does not have (context_gates)"]),
        ("inner", ["--decoder-norm-order inner"]),
        ("rnnsearch", ["rnnsearch_tiny is an RNNSearch", "stock fairseq does not have"]),
        ("stock", ["transformer_tiny", "not of this package", "nothing to export"]),
        ("align", ["other alignments"]),
        (
            "concatenating",
            ["exported: it needs --user-dir and --task context_translation", "--concatenate-preceding q1"],
        ),
    ],
)
def test_what_cannot_be_exported(
    model: str, reasons: List[str], trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        export(trained[model], tmp_path / "stock.pt")
    error = capsys.readouterr().err
    assert stop.value.code == 1
    assert error.count("\n") == 1
    assert all(text in error for text in (str(trained[model]), *reasons)), error
    assert not list(tmp_path.iterdir())
