"""Gate statistics on gates and labels written out by hand, their picture, and the command on a model whose gates are
set."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis.gate_statistics import GateStatistics
from fairseq_ctxgates.analysis.gates import SentenceGates, describe, gate_figure, histogram_figure
from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.data.data_directory import find_splits
from fairseq_ctxgates.errors import UserError
from tests.helpers import fairseq_commands as commands
from tests.helpers.corpus import binarize
from tests.helpers.outputs import output_files

# Two sentences, of two tokens and of one: (target length, batch, embed dim). The last position is padding.
GATE = torch.tensor([[[0.9, 0.7], [0.2, 0.4]], [[0.6, 0.1], [0.99, 0.99]]])
SHORT = ("--model-overrides", "{'max_target_positions': 1}")  # than every sentence
IS_TOKEN = torch.tensor([[True, True], [True, False]])
LABELS = torch.tensor([[SOURCE, TARGET], [SOURCE, IGNORE]])


def statistics_of(*batches: Any) -> GateStatistics:
    statistics = GateStatistics()
    for batch in batches:
        statistics.add(*batch)
    return statistics


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_one_layer_by_hand() -> None:
    statistics = statistics_of(({1: GATE}, IS_TOKEN, LABELS))
    summary = statistics.summary(1)
    # Components: 0.9 0.7 (source), 0.2 0.4 (source), 0.6 0.1 (target).
    assert summary.mean == pytest.approx(2.9 / 6)
    assert summary.variance == pytest.approx(1.87 / 6 - (2.9 / 6) ** 2)
    # Dimensions over the tokens: 0.9 0.2 0.6 and 0.7 0.4 0.1.
    assert statistics.dimensions(1)["mean"] == pytest.approx([1.7 / 3, 0.4])
    variances = [1.21 / 3 - (1.7 / 3) ** 2, 0.66 / 3 - 0.16]
    assert statistics.dimensions(1)["variance"] == pytest.approx(variances)
    assert summary.dimension_variance == pytest.approx(sum(variances) / 2)
    # On their side: 0.9, 0.7 and 0.1; of the means 0.8 (source), 0.3 (source), 0.35 (target) two.
    assert summary.agreement == pytest.approx(3 / 6)
    assert summary.mean_agreement == pytest.approx(2 / 3)
    # Means over components: 0, (0.3 + 0.1) / 2 and (0.1 + 0) / 2; three labelled positions.
    assert summary.hinge == pytest.approx((0 + 0.2 + 0.05) / 3)
    # Of the means 0.8 (source), 0.3 (source), 0.35 (target).
    assert summary.mean_hinge == pytest.approx((0 + 0.2 + 0) / 3)
    assert (statistics.sentences, statistics.tokens, statistics.labelled_tokens) == (2, 3, 3)
    assert statistics.majority_share == pytest.approx(2 / 3)


def test_all_layers_together() -> None:
    summary = statistics_of(({1: GATE, 2: torch.full_like(GATE, 0.5)}, IS_TOKEN, LABELS)).summary()
    assert summary.mean == pytest.approx((2.9 + 3.0) / 12)
    assert summary.variance == pytest.approx((1.87 + 1.5) / 12 - (5.9 / 12) ** 2)
    # A gate of one half is on neither side, and its hinge is 0.
    assert summary.agreement == pytest.approx(3 / 12)
    assert summary.hinge == pytest.approx(0.25 / 6)


def test_ignored_labels_count_in_mean_and_variance_only() -> None:
    ignored = ({1: torch.tensor([[[1.0, 0.0]]])}, torch.tensor([[True]]), torch.tensor([[IGNORE]]))
    without, summary = (statistics_of(*batches).summary(1) for batches in (
        [({1: GATE}, IS_TOKEN, LABELS)],
        [({1: GATE}, IS_TOKEN, LABELS), ignored],
    ))  # fmt: skip
    assert summary.mean == pytest.approx(3.9 / 8)
    assert (summary.agreement, summary.hinge) == (without.agreement, without.hinge)


def test_batches_add_up() -> None:
    apart = statistics_of(
        ({1: GATE[:, :1]}, IS_TOKEN[:1], LABELS[:1]), ({1: GATE[:1, 1:]}, IS_TOKEN[1:, :1], LABELS[1:, :1])
    )
    together = statistics_of(({1: GATE}, IS_TOKEN, LABELS)).as_dict()
    assert json.loads(json.dumps(apart.as_dict()), parse_float=lambda text: pytest.approx(float(text))) == together


def test_without_labels() -> None:
    statistics = statistics_of(({1: GATE}, IS_TOKEN))
    assert statistics.summary().mean == pytest.approx(2.9 / 6)
    assert (statistics.summary().agreement, statistics.summary().hinge, statistics.majority_share) == (None, None, None)
    assert describe(statistics).startswith("2 sentences, 3 target tokens, none labelled (ctxgates gate-labels ")


def test_histogram_by_hand() -> None:
    # In fiftieths: 0.9 0.7 0.2 0.4 0.6 0.1 and, of a second batch, 0 and 1, which is in the last.
    ends = ({1: torch.tensor([[[0.0, 1.0]]])}, torch.tensor([[True]]))
    counts = statistics_of(({1: GATE}, IS_TOKEN), ends).histogram(1)
    assert len(counts) == 50 and counts.sum() == 8
    assert counts.nonzero()[0].tolist() == [0, 5, 10, 20, 30, 35, 45, 49]


# --- picture ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 30])
def test_figure_shows_the_gates_and_nothing_overlaps(length: int) -> None:
    means = torch.linspace(0, 1, 2 * length).reshape(2, length)
    tokens = [f"wort{number}@@" for number in range(length - 1)] + ["</s>"]
    labels = ["source", "target"] * (length // 2)
    figure: Any = gate_figure(SentenceGates("the source " * length, tokens, [1, 2], means, labels))
    figure.canvas.draw()
    heat_map, colour_bar = figure.axes
    (image,) = heat_map.get_images()
    assert image.get_clim() == (0, 1)
    torch.testing.assert_close(torch.tensor(image.get_array().data), means)
    assert [text.get_text() for text in heat_map.get_xticklabels()] == tokens
    assert "weight of the source" in colour_bar.get_ylabel()
    shown = heat_map.child_axes[0].get_xticklabels()
    assert [text.get_text() for text in shown] == labels
    for row in (shown, heat_map.texts[:length], heat_map.texts[length:]):
        boxes = [text.get_window_extent() for text in row]
        assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:]))


def test_histogram_figure_has_a_line_for_each_layer() -> None:
    statistics = statistics_of(({1: GATE, 3: torch.full_like(GATE, 0.51)}, IS_TOKEN))
    figure: Any = histogram_figure(statistics, "about")
    (axes,) = figure.axes
    heights = [step.get_data().values for step in axes.patches]
    assert [height.sum() for height in heights] == [pytest.approx(100), pytest.approx(100)]
    assert heights[1][25] == pytest.approx(100)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["layer 1", "layer 3"]


# --- command ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = {"train": commands.make_pairs(32, seed=1), "valid": commands.make_pairs(8, seed=3)}
    data = binarize(tmp_path_factory.mktemp("gates") / "data-bin", dict(pairs), "de", "en")
    commands.write_gate_labels(data)
    return data


@pytest.fixture(scope="module")
def checkpoint(data: Path) -> Path:
    """A model whose gates are set: every component 3/4 in the first layer and 1/4 in the second."""
    commands.train(data, data / "gated", *commands.GATED, "--max-update", "1")
    path = data / "gated" / "checkpoint_last.pt"
    state = torch.load(path)
    for layer, odds in ((0, 3.0), (1, 1 / 3)):
        prefix = f"decoder.layers.{layer}.connection.fc2"
        state["model"][f"{prefix}.weight"].zero_()
        state["model"][f"{prefix}.bias"].fill_(math.log(odds))
    torch.save(state, path)
    return path


def summary(mean: float, variance: float, agreement: float, hinge: float) -> dict[str, float]:
    """Of gates that do not change from token to token, and whose components are equal."""
    means = {"dimension_variance": 0.0, "mean_agreement": agreement, "mean_hinge": hinge}
    return {"mean": mean, "variance": variance, "agreement": agreement, "hinge": hinge, **means}


def test_command_on_a_model_whose_gates_are_set(
    data: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, picture = tmp_path / "new" / "gates.json", tmp_path / "gates.png"
    options = [
        "-s",
        "de",
        "-t",
        "en",
        "--gen-subset",
        "valid",
        "--max-tokens",
        "30",
        "--json",
        str(report),
        "--figure",
        str(picture),
    ]
    analysis.main(["gates", str(data), "--path", str(checkpoint), "--cpu", *options])
    found = json.loads(report.read_text(encoding="utf-8"))
    (valid,) = (split for split in find_splits(data, "de", "en") if split.name == "valid")
    labels = [label for row in valid.load_language("en") for label in commands.labels_of(row).tolist()]
    number = {"source": labels.count(SOURCE), "target": labels.count(TARGET)}
    assert number["source"] != number["target"]
    assert (found["sentences"], found["target_tokens"], found["labels"]) == (8, len(labels), number)
    source_share = number["source"] / sum(number.values())
    for layer, mean, agreement in (("1", 0.75, source_share), ("2", 0.25, 1 - source_share)):
        expected = summary(mean, variance=0, agreement=agreement, hinge=0.25 * (1 - agreement))
        assert found["layers"][layer] == pytest.approx(expected, abs=1e-6)
        assert found["dimensions"][layer]["mean"] == pytest.approx([mean] * 64)
    assert found["all"] == pytest.approx(summary(0.5, variance=1 / 16, agreement=0.5, hinge=1 / 8), abs=1e-6)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "over valid of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gen-subset", "tset"], "no split 'tset' of de-en: it has train, valid"),
        (["--source-lang", "fr"], "dict.fr.txt not found"),
        (["--gen-subset", "valid", "--sentence", "9", "--figure", "x.png"], "'valid' has sentences 1 to 8"),
        (["--gen-subset", "valid", *SHORT, "--figure", "x.png"], "--sentence 1: it is too long for .*, choose another"),
        (["--gen-subset", "valid", *SHORT, "--html", "x.html"], "--sentence 1: from there on all are too long for .*"),
        (["--path", "missing.pt"], "missing.pt not found"),
    ],
)
def test_mistakes_are_explained(data: Path, checkpoint: Path, options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        analysis.main(["gates", str(data), "--path", str(checkpoint), "--cpu", *options])


def test_data_that_is_not_there(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere.* not found"):
        analysis.main(["gates", str(tmp_path / "nowhere"), "--path", str(checkpoint), "--cpu"])


def test_a_model_without_gates_is_refused(data: Path, tmp_path: Path) -> None:
    commands.train(data, tmp_path, *commands.PLAIN, "--max-update", "1")
    with pytest.raises(UserError, match="checkpoint_last.pt has no context gates"):
        analysis.main(
            ["gates", str(data), "--path", str(tmp_path / "checkpoint_last.pt"), "--gen-subset", "valid", "--cpu"]
        )


def test_gates_of_rnnsearch_on_data_without_labels(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arch = ("--arch", "ctxgate_rnnsearch_tiny", "--criterion", "label_smoothed_cross_entropy")
    commands.train(data, tmp_path, *arch, "--max-update", "1", "--no-epoch-checkpoints")
    without = tmp_path / "data-bin"
    shutil.copytree(data, without, ignore=shutil.ignore_patterns("*.gate.*", "gated"))
    files = output_files(tmp_path, "gates")
    files["histogram"] = tmp_path / "histogram.png"
    options = [part for option, file in files.items() for part in (f"--{option}", str(file))]
    path = str(tmp_path / "checkpoint_last.pt")
    analysis.main(["gates", str(without), "--path", path, "--gen-subset", "valid", "--cpu", *options])
    assert "none labelled (ctxgates gate-labels makes labels" in capsys.readouterr().out
    found = json.loads(files["json"].read_text(encoding="utf-8"))
    assert list(found["layers"]) == ["1"] and 0 < found["all"]["mean"] < 1 and found["all"]["agreement"] is None
    assert sum(found["histogram"]["1"]) == found["target_tokens"] * 64
    header, row, everything = files["csv"].read_text(encoding="utf-8").splitlines()
    assert header == "layer,mean,variance,variance by dimension,agreement,agreement of means,hinge,hinge of means"
    assert row.split(",")[1:] == everything.split(",")[1:] and row.endswith(",,,,")
    for option in ("histogram", "figure"):
        assert files[option].read_bytes().startswith(b"\x89PNG")
