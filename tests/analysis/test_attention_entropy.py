"""Entropy of the attention over preceding sentences, on attention written out by hand and on models whose attention is
even."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
import torch

from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis import attention_entropy as attention_entropy_module
from fairseq_ctxgates.analysis.attention_entropy import (
    SentenceEntropy,
    attention_by_distance,
    attention_entropy,
    distance_tables,
    entropy,
    entropy_figure,
    summarize,
    summary_table,
)
from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize
from tests.helpers.documents import DOCUMENTS, SHORT, TEXT
from tests.helpers.outputs import output_files
from tests.helpers.trained import Trained

# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "bits"),
    [
        ([[0.5, 0.25, 0.25, 0.0]], 1.5),
        ([[0.25, 0.25, 0.25, 0.25]], 2.0),
        ([[0.0, 0.0, 1.0, 0.0]], 0.0),
        ([[1 / 3, 1 / 3, 1 / 3, 0.0]], 1.5849625),  # the paper's 1.58: a NULL sentence has three tokens
        ([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]], 1.0),  # of the heads' mean
    ],
)
def test_entropy_by_hand(heads: List[List[float]], bits: float) -> None:
    attention = torch.tensor(heads)[:, None, None]
    assert attention_entropy(attention).tolist() == [[pytest.approx(bits, abs=1e-6)]]


ONE = np.ones((2, 1))
NULL = [
    SentenceEntropy(1, None, 3, ["a", "</s>"], [2, 3], np.array([[1.5, 1.0], [0.5, 1.0]]), ONE, ONE),
    SentenceEntropy(4, None, 3, ["</s>"], [2, 3], np.array([[0.5], [0.0]]), ONE, ONE),
]
SHARES, WITHIN = np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([[1.0, 0.5], [2.0, 1.0]])
ORDINARY = SentenceEntropy(2, "x y z", 4, ["b"], [2, 3], np.array([[2.0], [1.0]]), SHARES, WITHIN)


def test_summary_by_hand() -> None:
    of_two, of_three, of_all, ordinary_of_two, _, ordinary_of_all = summarize([NULL[0], ORDINARY, NULL[1]])
    assert (of_two.kind, of_two.layer, of_two.sentences, of_two.target_tokens) == ("NULL", 2, 2, 3)
    assert of_two.mean_bits == pytest.approx(1.0)
    assert of_two.standard_deviation == pytest.approx(math.sqrt((0.25 + 0 + 0.25) / 3))
    assert of_two.share_of_even == pytest.approx(1 / math.log2(3))
    assert (of_three.layer, of_three.mean_bits) == (3, pytest.approx(0.5))
    assert (of_all.layer, of_all.mean_bits) == (None, pytest.approx(0.75))
    assert (ordinary_of_two.kind, ordinary_of_two.share_of_even) == ("ordinary", pytest.approx(1.0))
    assert (ordinary_of_all.sentences, ordinary_of_all.mean_bits) == (1, pytest.approx(1.5))


def test_attention_over_one_token_is_neither_even_nor_uneven() -> None:
    one = SentenceEntropy(1, None, 1, ["a", "</s>"], [1], np.zeros((1, 2)), np.ones((1, 1)), np.zeros((1, 1)))
    three = SentenceEntropy(2, None, 3, ["a"], [1], np.array([[math.log2(3)]]), np.ones((1, 1)), np.ones((1, 1)))
    null_alone, _ = summarize([one])
    assert (null_alone.mean_bits, null_alone.share_of_even) == (0.0, None)
    of_both, _ = summarize([one, three])
    assert of_both.share_of_even == pytest.approx(1.0)


def test_a_kind_without_sentences_is_shown_as_none() -> None:
    table = summary_table(summarize(NULL))
    assert table.rows[-1] == ["ordinary", "all", 0, 0, None, None, None]
    assert table.text().splitlines()[-1].split() == ["ordinary", "all", "0", "0", "—", "—", "—"]


def test_attention_by_the_distance_of_preceding_sentences() -> None:
    """Of two heads over the sentence before the previous one (its first two tokens) and the previous one."""
    attention = torch.tensor([[[[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]], [[[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]]]])
    distances, words = torch.tensor([[2, 2, 1]]), torch.tensor([[True, False]])
    shares, bits = attention_by_distance(attention, distances, words, 2)
    assert shares.tolist() == [[0.5, 0.5]] and bits.tolist() == [[0.0, 1.0]]
    shares, bits = attention_by_distance(attention, distances, ~words, 2)
    assert shares.tolist() == [[0.0, 1.0]]
    assert bits.tolist() == [[pytest.approx(math.nan, nan_ok=True), pytest.approx(0.811278)]]
    *_, nothing = attention_by_distance(attention, torch.tensor([[1, 1, 1]]), words, 2)[1][0].tolist()
    assert math.isnan(nothing)  # the first sentences of a document have fewer before them
    nearest_only = np.array([[1.0, 0.0], [1.0, 0.0]])
    other = replace(ORDINARY, shares=nearest_only, bits_within=np.array([[0.0, math.nan], [1.0, math.nan]]))
    (table,) = distance_tables(summarize([*NULL, ORDINARY, other]))
    columns = [(f"attention at distance {distance}", f"entropy in {distance} (bits)") for distance in (1, 2)]
    assert list(table.columns) == ["layer", *columns[0], *columns[1]]
    expected: List[List[Any]] = [
        [2, 0.875, 0.75 / 1.75, 0.125, 0.5],
        [3, 0.625, 1.2, 0.375, 1.0],
        ["all", 0.75, 0.75, 0.25, 0.875],
    ]
    assert [row[0] for row in table.rows] == [row[0] for row in expected]
    assert [row[1:] for row in table.rows] == [pytest.approx(row[1:]) for row in expected]


def test_null_is_not_in_the_table_of_distances() -> None:
    shares = np.array([[1.0, 0.0]] * 2)
    nulls = [replace(one, shares=shares, bits_within=shares * np.array([1, math.nan])) for one in NULL]
    (table,) = distance_tables(summarize([*nulls, ORDINARY]))
    assert [row[0] for row in table.rows] == [2, 3, "all"]


def test_entropy_within_a_sentence_with_little_attention() -> None:
    weights, distances = torch.tensor([[[[0.001, 0.001, 0.998]]]]), torch.tensor([[2, 2, 1]])
    _, bits = attention_by_distance(weights, distances, torch.tensor([[True]]), 2)
    assert bits.tolist() == [pytest.approx([0.0, 1.0], abs=1e-5)]


def test_the_mean_over_sentences_adds_up_as_well() -> None:
    """Two sentences of two words and of one: by hand, over their words."""
    one = SentenceEntropy(1, "x", 4, ["a", "b"], [1], np.ones((1, 2)), np.array([[0.9, 0.1]]), np.array([[2.0, 1.0]]))
    other = replace(
        one, tokens=["c"], bits=np.ones((1, 1)), shares=np.array([[0.6, 0.4]]), bits_within=np.array([[1.0, 0.5]])
    )
    (_, summary) = summarize([one, other])
    assert summary.shares == pytest.approx((0.8, 0.2))
    within = (2 * 0.9 * 2 + 0.6 * 1) / 2.4, (2 * 0.1 * 1 + 0.4 * 0.5) / 0.6
    assert summary.bits_within == pytest.approx(within)


def test_entropy_is_that_of_the_distances_and_that_within_them() -> None:
    attention = (9 * torch.rand(4, 1, 5, 9, generator=torch.Generator().manual_seed(1))).softmax(dim=-1)
    distances = torch.tensor([[3, 3, 2, 2, 2, 2, 1, 1, 1]])
    shares, bits = attention_by_distance(attention, distances, torch.ones(1, 5, dtype=torch.bool), 3)
    of_tokens = attention.mean(dim=0)[0].split([2, 4, 3], dim=-1)
    of_shares = entropy(torch.stack([part.sum(dim=-1) for part in of_tokens], dim=-1)).mean()
    assert (of_shares + (shares * bits).sum()).item() == pytest.approx(attention_entropy(attention).mean().item())


# --- picture ----------------------------------------------------------------------------------------------------------


def test_figure_shows_the_curves_and_nothing_overlaps() -> None:
    tokens = [f"wort{number}@@" for number in range(29)] + ["</s>"]
    bits = np.stack([np.linspace(0, 2, 30), np.linspace(2, 1, 30)])
    after_a_long_one = SentenceEntropy(7, "the preceding sentence " * 9, 4, tokens, [1, 2], bits, ONE, ONE)
    figure: Any = entropy_figure([NULL[0], after_a_long_one])
    figure.canvas.draw()
    first, second = figure.axes
    assert "after NULL (n = 3)" in first.get_title() and "after “the preceding" in second.get_title()
    curves = {line.get_label(): line.get_ydata() for line in second.get_lines()}
    assert set(curves) == {"layer 1", "layer 2", "mean of the layers", "even: log2 n"}
    np.testing.assert_allclose(curves["layer 2"], bits[1])
    np.testing.assert_allclose(curves["mean of the layers"], bits.mean(axis=0))
    np.testing.assert_allclose(curves["even: log2 n"], 2)
    assert [label.get_text() for label in second.get_xticklabels()] == tokens
    for axes in (first, second):
        assert "bits" in axes.get_ylabel()
        # Labels at an angle of 45 degrees stand clear when they are a line's height apart.
        places = [axes.transData.transform((place, 0))[0] for place in axes.get_xticks()]
        height = axes.get_xticklabels()[0].get_size() / 72 * figure.dpi
        assert min(right - left for left, right in zip(places, places[1:])) > height
    title = second.title.get_window_extent()
    assert title.x0 > 0 and title.x1 < figure.bbox.x1


# --- command ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def even(trained_on_documents: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Models whose attention over the preceding sentence is even, for its scores are all the same; and a plain one."""
    even = replace(trained_on_documents, folder=tmp_path_factory.mktemp("entropy"))
    for name in ("isg", "rnnsearch", "plain"):
        state = torch.load(trained_on_documents[name])
        for parameter, value in state["model"].items():
            if parameter.endswith((".q_proj.weight", ".q_proj.bias", ".score")) and ".inter_sentence." in parameter:
                value.zero_()
        even[name].parent.mkdir()
        torch.save(state, even[name])
    return even


def arguments(trained: Trained, model: str, *more: str) -> List[str]:
    return ["attention-entropy", str(trained.data), "--path", str(trained[model]), "--cpu", *more]


@pytest.mark.parametrize(("model", "layers"), [("isg", 2), ("rnnsearch", 1)])
def test_command_on_a_model_whose_attention_is_even(
    even: Trained, model: str, layers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = output_files(tmp_path / "new", "entropy")
    options = [text for option, path in files.items() for text in (f"--{option}", str(path))]
    analysis.main(arguments(even, model, "--max-tokens", "40", *options))
    report = json.loads(files["json"].read_text(encoding="utf-8"))
    assert report["unit"] == "bits"
    # Every document's first sentence comes after NULL, every other one after a sentence whose n is its words and eos.
    lengths = [[len(target.split()) + 1 for _, target in document] for document in TEXT["test"]]
    expected = {"NULL": sum(document[0] for document in lengths), "ordinary": sum(sum(d[1:]) for d in lengths)}
    assert len(report["summary"]) == 2 * (layers + (layers > 1))
    for summary in report["summary"]:
        assert summary["target_tokens"] == expected[summary["kind"]]
        assert summary["share_of_even"] == pytest.approx(1, abs=1e-5)
        if summary["kind"] == "NULL":
            assert (summary["sentences"], summary["mean_bits"]) == (3, pytest.approx(math.log2(3), abs=1e-5))
    rows = list(csv.DictReader(files["csv"].read_text(encoding="utf-8").splitlines()))
    sources = [len(source.split()) + 1 for document in TEXT["test"] for source, _ in document]
    assert len(rows) == sum(expected.values())
    for row in rows:
        n = 3 if row["preceding sentence"] == "NULL" else sources[int(row["sentence"]) - 2]
        assert int(row["n"]) == n
        assert float(row[f"entropy of layer {layers} (bits)"]) == pytest.approx(math.log2(n), abs=1e-4)
    assert [row["token"] for row in rows if row["sentence"] == "2"] == [*TEXT["test"][0][1][1].split(), "</s>"]
    assert files["figure"].read_bytes().startswith(b"\x89PNG")
    assert "over the preceding sentences of test" in capsys.readouterr().out


def test_under_the_ablation_every_preceding_sentence_is_null(even: Trained, tmp_path: Path) -> None:
    options = ("--json", str(tmp_path / "x.json"), "--model-overrides", "{'inter_sentence_ablation': 'null'}")
    analysis.main(arguments(even, "isg", *options))
    summary = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["summary"]
    assert {(entry["kind"], entry["sentences"]) for entry in summary} == {("NULL", 20), ("ordinary", 0)}
    assert sum(DOCUMENTS["test"]) == 20


def test_padding_on_the_left_changes_nothing(trained_on_documents: Trained, tmp_path: Path) -> None:
    """In the first layer; in the next, torch 1.12 attends to the positions of padding, which are NaN there."""
    values = []
    for name, options in (("right", ()), ("left", ("--model-overrides", "{'left_pad_target': True}"))):
        table = tmp_path / f"{name}.csv"
        analysis.main(arguments(trained_on_documents, "isg", "--csv", str(table), *options))
        rows = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
        values.append([float(row["entropy of layer 1 (bits)"]) for row in rows])
    np.testing.assert_allclose(values[0], values[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("plain", (), "plain/checkpoint_last.pt has no inter-sentence gate: train with"),
        ("isg", ("--gen-subset", "tset"), "no split 'tset' of de-en: it has train, test, valid"),
        ("isg", ("--figure", "x.png", "--sentence", "1", "21"), "--sentence 21: split 'test' has sentences 1 to 20"),
        ("isg", ("--figure", "x.png", "--sentence", "1", "4", *SHORT), "--sentence 4: it is too long for .*_last.pt"),
        ("isg", ("--figure", "/"), "--figure / is a folder"),
        ("rnnsearch", ("--model-overrides", "{'inter_sentence_ablation': 'random'}"), "ablation 'random' nothing"),
    ],
)
def test_mistakes_are_explained(
    even: Trained, model: str, options: List[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_entropy_module, "sentence_entropies", None)  # all this comes before
    with pytest.raises(UserError, match=message):
        analysis.main(arguments(even, model, *options))


def test_data_without_the_stream(even: Trained, tmp_path: Path) -> None:
    pairs = [pair for document in TEXT["test"] for pair in document]
    data = binarize(tmp_path / "data", {"test": pairs}, "de", "en", joined=True)
    for lang in ("de", "en"):
        (data / f"dict.{lang}.txt").write_bytes((even.data / f"dict.{lang}.txt").read_bytes())
    options = arguments(even, "isg")
    options[1] = str(data)
    with pytest.raises(UserError, match="test.preceding.de-en.idx not found; run: ctxgates preceding-sentences"):
        analysis.main(options)
