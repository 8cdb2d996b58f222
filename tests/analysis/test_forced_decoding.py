"""Forced decoding: error rates worked by hand, the arg-max beside fairseq's own scorer, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.sequence_scorer import SequenceScorer

from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis import forced_decoding
from fairseq_ctxgates.analysis.forced_decoding import Comparison, count_errors, error_figure, predicted_words
from fairseq_ctxgates.analysis.inference import Inference
from fairseq_ctxgates.context_gates.pmi.labelling import GateLabeller
from fairseq_ctxgates.errors import UserError
from tests.helpers import fairseq_commands as commands
from tests.helpers.corpus import binarize
from tests.helpers.models import DICTIONARY, PAD, build_model, make_batch, make_model, runs_stock_encoder
from tests.helpers.pmi import PAIRS, count, encode
from tests.helpers.reference_rnnsearch import make_rnnsearch

# --- numbers ----------------------------------------------------------------------------------------------------------

# For sentences of test_pmi.py, whose tables are written there: what was predicted, and what follows from the tables.
# The labels of the references are S S –, S S –, S T S –, S – (S: source, T: target, –: none).
PREDICTED = [
    # a b → x y: z is S as x is; z after x is T (8/9 against 1) and y S, a context error; x at the end of sentence has
    # a label and the end of sentence none.
    (PAIRS[0], "z z x", (3, 3, 1)),
    # a c → x z: the end of sentence in place of x has no label.
    (PAIRS[1], "</s> z </s>", (3, 1, 0)),
    # c c → z x z: z after z is S (8/3 against 1) and x T, an error; y after z x is T (never with c) and z S, an error.
    (PAIRS[3], "z z y </s>", (4, 2, 2)),
    # b d → y: x is S as y is.
    (PAIRS[4], "x </s>", (2, 1, 0)),
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    folder = binarize(tmp_path_factory.mktemp("by_hand"), {"train": PAIRS}, "de", "en")
    labeller = GateLabeller(*count(folder))
    sources = [encode(folder, "de", source) for (source, _), _, _ in PREDICTED]
    targets = [encode(folder, "en", target) for (_, target), _, _ in PREDICTED]
    predictions = [encode(folder, "en", predicted)[:-1] for _, predicted, _ in PREDICTED]
    return count_errors(labeller, sources, targets, predictions)


def test_errors_worked_by_hand(errors: np.ndarray) -> None:
    assert [tuple(row) for row in errors.tolist()] == [counts for _, _, counts in PREDICTED]


def test_rates_worked_by_hand(errors: np.ndarray) -> None:
    comparison = Comparison(["one"], [errors], resamples=100, seed=1)
    rates = [comparison.rate(0, name).value for name in ("FER", "CER", "CE/FE")]
    assert rates == pytest.approx([7 / 12, 3 / 12, 3 / 7])


def test_differences_and_their_intervals_are_paired(errors: np.ndarray) -> None:
    # One error more in every sentence of 10 tokens: a difference of a tenth, whatever is resampled.
    first = np.stack([np.full(20, 10), np.arange(20) % 7, np.arange(20) % 3], axis=1)
    comparison = Comparison.of_common_sentences(["one", "two"], [first, first + [0, 1, 0]], resamples=100, seed=1)
    difference = comparison.difference(1, "FER")
    assert (difference.value, difference.low, difference.high) == pytest.approx((0.1, 0.1, 0.1))
    assert comparison.difference(0, "FER").value is None
    assert comparison.difference(1, "CER").value == 0
    assert comparison.difference(1, "CE/FE").value == pytest.approx(19 / (57 + 20) - 19 / 57)


def test_only_sentences_that_every_model_read_are_compared() -> None:
    first, second = np.array([[3, 1, 0], [0, 0, 0], [5, 2, 1]]), np.array([[3, 2, 0], [4, 1, 1], [0, 0, 0]])
    comparison = Comparison.of_common_sentences(["one", "two"], [first, second], resamples=10, seed=1)
    assert [errors.tolist() for errors in comparison.errors] == [[[3, 1, 0]], [[3, 2, 0]]]
    with pytest.raises(UserError, match="no sentence is short enough"):
        Comparison.of_common_sentences(["one", "two"], [first[:2], second[:2] * 0], resamples=10, seed=1)


def test_a_model_without_errors_has_no_share_of_them() -> None:
    comparison = Comparison.of_common_sentences(["one"], [np.array([[3, 0, 0]])], resamples=10, seed=1)
    assert [comparison.rate(0, name).value for name in ("FER", "CER", "CE/FE")] == [0, 0, None]
    json.dumps(comparison.as_dicts(), allow_nan=False)


# --- arg-max ----------------------------------------------------------------------------------------------------------


def adaptive_softmax(arch: str, cutoff: Any) -> Any:
    torch.manual_seed(1)
    return build_model(arch, adaptive_softmax_cutoff=cutoff, decoder_output_dim=12).eval()


MODELS = {
    "fairseq's transformer": lambda: make_model("transformer").float(),
    "fairseq's adaptive softmax": lambda: adaptive_softmax("transformer", [8, 12]),
    "adaptive softmax": lambda: adaptive_softmax("context_transformer", [8, 12]),
    "context gates": lambda: make_model("rcg_transformer").float(),
    "RNNSearch": lambda: make_rnnsearch("ctxgate_rnnsearch").float(),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_predicted_words_are_those_that_the_scorer_scores_highest(name: str) -> None:
    model = MODELS[name]()
    batch = make_batch([[5, 6, 7], [8], [9, 4]], [[10, 11], [12, 13, 14, 15], [7]])
    scorer = SequenceScorer(DICTIONARY)
    scorer.pad = -1  # or it would not score padding, which a model may well predict
    scores = []
    for word in range(len(DICTIONARY)):
        target = batch["target"].masked_fill(batch["target"].ne(PAD), word)
        scored = scorer.generate([model], {**batch, "target": target})
        scores.append([hypotheses[0]["positional_scores"][:length] for hypotheses, length in zip(scored, (3, 5, 2))])
    highest = [torch.stack(of_sentence).argmax(dim=0).tolist() for of_sentence in zip(*scores)]
    assert [words.tolist() for words in predicted_words(model, batch, PAD)] == highest
    assert len({word for words in highest for word in words}) > 1


# --- command ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = {name: commands.make_pairs(number, seed) for name, number, seed in (("train", 48, 1), ("valid", 12, 3))}
    data = binarize(tmp_path_factory.mktemp("forced") / "data-bin", dict(pairs), "de", "en")
    count(data)
    commands.write_gate_labels(data)
    return data


@pytest.fixture(scope="module")
def checkpoints(data: Path) -> list[str]:
    paths = []
    for name, options in (("plain", commands.PLAIN), ("gated", commands.GATED)):
        commands.train(data, data / name, *options, "--max-epoch", "10", "--no-epoch-checkpoints")
        paths.append(str(data / name / "checkpoint_last.pt"))
    return paths


@runs_stock_encoder
def test_command_on_two_models(
    data: Path, checkpoints: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("errors.json", "errors.csv", "errors.png")]
    options = [part for option, file in zip(("--json", "--csv", "--figure"), files) for part in (option, str(file))]
    shared = ["--gen-subset", "valid", "--batch-size", "5", "--cpu", *options]
    analysis.main(["forced-decoding", str(data), *shared, "--path", *checkpoints])
    first, second = json.loads(files[0].read_text(encoding="utf-8"))["systems"]
    assert (first["system"], second["system"]) == ("plain", "gated")
    for system, path in zip((first, second), checkpoints):
        meters = commands.validate(
            data, path, "--valid-subset", "valid", "--model-overrides", "{'report_accuracy': True}"
        )
        assert 100 - system["FER"] == pytest.approx(float(meters["valid_accuracy"]), abs=2e-3)
        assert 0 < system["CER"] < system["FER"] < 100
        assert system["FER_low"] <= system["FER"] <= system["FER_high"]
    assert second["FER_difference"] == pytest.approx(second["FER"] - first["FER"])
    header, *rows = files[1].read_text(encoding="utf-8").splitlines()
    assert header.startswith("system,errors,context_errors,FER,FER_low") and len(rows) == 2
    assert files[2].read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "over valid of" in printed and "12 sentences" in printed and "minus plain" in printed

    analysis.main(["forced-decoding", str(data), *shared, "--path", ":".join(checkpoints), "--names", "a", "b"])
    assert [{**row, "system": ""} for row in json.loads(files[0].read_text(encoding="utf-8"))["systems"]] == [
        {**first, "system": ""},
        {**second, "system": ""},
    ]


@runs_stock_encoder
def test_sentences_longer_than_a_model_are_left_out_for_all(
    data: Path, checkpoints: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shorter = tmp_path / "shorter.pt"
    commands.train(data, tmp_path, *commands.PLAIN, "--max-update", "1", "--max-target-positions", "6",
                   "--skip-invalid-size-inputs-valid-test")  # fmt: skip
    (tmp_path / "checkpoint_last.pt").rename(shorter)
    analysis.main(
        ["forced-decoding", str(data), "--gen-subset", "valid", "--cpu", "--path", checkpoints[0], str(shorter)]
    )
    lengths = [len(target.split()) + 1 for _, target in commands.make_pairs(12, 3)]
    left_out = sum(length > 6 for length in lengths)
    assert 0 < left_out < 12
    assert f"({left_out} sentences are too long for a model)" in capsys.readouterr().out


def test_models_of_two_directions_are_not_compared(
    data: Path, checkpoints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forced_decoding, "forced_decoding_errors", lambda *_: np.array([[1, 0, 0]]))
    monkeypatch.setattr(Inference, "direction", property(lambda model: "en-de" if "gated" in model.path else "de-en"))
    with pytest.raises(UserError, match="gated/checkpoint_last.pt translates en-de, .*plain/checkpoint_last.pt de-en"):
        analysis.main(["forced-decoding", str(data), "--gen-subset", "valid", "--cpu", "--path", *checkpoints])


def test_what_is_missing_is_named(data: Path, checkpoints: list[str], tmp_path: Path) -> None:
    def analyze(data_dir: Path, path: str) -> None:
        analysis.main(["forced-decoding", str(data_dir), "--gen-subset", "valid", "--cpu", "--path", path])

    pairs = {"valid": commands.make_pairs(12, 3), "train": commands.make_pairs(48, 1)}
    without = binarize(tmp_path / "without", dict(pairs), "de", "en")
    with pytest.raises(UserError, match=r"pmi.bilingual.de-en.npz not found; .*ctxgates gate-labels"):
        analyze(without, checkpoints[0])
    other = binarize(tmp_path / "other", {"valid": commands.make_pairs(2, 3)}, "de", "en")
    with pytest.raises(UserError, match=r"checkpoint_last.pt is not a complete .* with dictionaries other"):
        analyze(other, checkpoints[0])
    with pytest.raises(UserError, match="nowhere.pt not found"):
        analyze(data, "nowhere.pt")
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(Path(checkpoints[0]).read_bytes()[:20000])
    with pytest.raises(UserError, match="damaged.pt"):
        analyze(data, str(damaged))


def test_figure_has_a_bar_for_each_model_and_a_legend() -> None:
    errors = [np.array([[10, 4, 1], [8, 2, 1]]), np.array([[10, 3, 1], [8, 3, 2]])]
    figure: Any = error_figure(Comparison.of_common_sentences(["one", "two"], errors, 50, 1), "about")
    assert [[bar.get_height() for bar in axes.patches] for axes in figure.axes] == [
        pytest.approx([100 * 6 / 18, 100 * 6 / 18]),
        pytest.approx([100 * 2 / 18, 100 * 3 / 18]),
        pytest.approx([100 * 2 / 6, 100 * 3 / 6]),
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
