"""The relation mask beside the encoder's attention: against the reference implementation, as a picture and a table, and
the command on a model whose attention is even."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import torch

from fairseq_ctxgates import analysis
from fairseq_ctxgates.analysis.relations import RelationAttention, relation_figure, self_attention, token_table
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.mask import pack_tuples, relation_mask
from tests.helpers import fairseq_commands as commands
from tests.helpers.corpus import binarize
from tests.helpers.models import PAD, SOURCES, TARGETS, make_batch, make_model
from tests.helpers.outputs import output_files
from tests.helpers.reference_transformer import ReferenceTransformer
from tests.helpers.trained import Trained, train_models

# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64", "no_grad")
@pytest.mark.parametrize("second", [{}, {"inter_sentence_gate": True}], ids=["alone", "beside the inter-sentence gate"])
@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("operation", ["fill", "multiply"])
@pytest.mark.parametrize("order", ["post", "pre"])
def test_weights_are_those_of_the_reference_implementation(
    order: str, operation: str, layer: int, second: Dict[str, Any]
) -> None:
    options: dict[str, Any] = {"encoder_layers": 2, "encoder_normalize_before": order == "pre", **second}
    model = make_model("fra_transformer", relation_mask_operation=operation, **options)
    batch = make_batch(SOURCES, TARGETS)
    source = batch["net_input"]["src_tokens"]
    masks = torch.ones(3, 6, 6, dtype=torch.bool)
    masks[0] = torch.from_numpy(relation_mask(pack_tuples([[0, 1], [1, 4]]), 6))
    batch["net_input"]["relation_mask"] = masks
    batch["net_input"]["preceding_tokens"] = torch.cat([source[:, :3], source], dim=1)  # longer than the sources

    found = self_attention(model, batch, layer)

    is_word = source.ne(PAD).numpy()
    for weights, mask, how in zip(found, (torch.ones_like(masks), masks), ("fill", operation)):
        reference = ReferenceTransformer(model, order, side="encoder")
        reference.encode(source.numpy(), mask.numpy(), how)
        expected = reference.attention_weights[f"layers.{layer - 1}.self_attn"].mean(axis=0)
        np.testing.assert_allclose(weights.numpy()[is_word], expected[is_word], rtol=0, atol=1e-10)
    assert (found[0] - found[1])[0].abs().max() > 0.05


def by_hand() -> RelationAttention:
    """Three tokens, the first two of which see each other."""
    mask = np.array([[True, True, False], [True, True, False], [False, False, True]])
    plain = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
    masked = np.array([[0.4, 0.6, 0.0], [0.9, 0.1, 0.0], [0.0, 0.0, 1.0]])
    return RelationAttention(7, ["dogs", "bark", "</s>"], 2, mask, plain, masked)


def test_table_by_hand() -> None:
    rows = token_table(by_hand()).rows
    assert [row[:2] for row in rows] == [["dogs", 2], ["bark", 2], ["</s>", 1]]
    assert [row[2] for row in rows] == pytest.approx([0.3, 0.75, 0.25])
    assert [row[3:] for row in rows] == [["</s>", "bark"], ["dogs", "dogs"], ["bark", "</s>"]]


# --- picture ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 12, 40])
def test_figure_shows_the_matrices_and_nothing_overlaps(length: int) -> None:
    tokens = [f"dictionary{number}@@" for number in range(length - 1)] + ["</s>"]
    generator = np.random.default_rng(1)
    mask = np.eye(length, dtype=bool) | (generator.random((length, length)) < 0.3)
    plain, masked = generator.dirichlet(np.ones(length), size=(2, length))
    figure: Any = relation_figure(RelationAttention(3, tokens, 1, mask, plain, masked))
    figure.canvas.draw()
    panels, colour_bars = figure.axes[:3], figure.axes[3:]
    for axes, matrix in zip(panels, (mask, plain, masked)):
        (image,) = axes.get_images()
        np.testing.assert_allclose(image.get_array().data, matrix)
        assert image.get_clim() == (0, matrix.max())
        places = axes.transData.transform([(place, place) for place in range(length)])
        for axis, row in ((axes.xaxis, places[:, 0]), (axes.yaxis, places[:, 1])):
            labels = axis.get_ticklabels()
            assert [label.get_text() for label in labels] == tokens
            height = labels[0].get_size() / 72 * figure.dpi
            assert np.abs(np.diff(row)).min() > height
    assert [axes.get_ylabel() for axes in colour_bars] == ["weight (mean over heads)"] * 2
    boxes = [axes.get_tightbbox(figure.canvas.get_renderer()) for axes in figure.axes]
    boxes.sort(key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:]))
    assert figure._suptitle.get_window_extent().y0 >= max(box.y1 for box in boxes)
    assert boxes[0].x0 >= 0 and boxes[-1].x1 <= figure.bbox.x1 and min(box.y0 for box in boxes) >= 0


def test_figure_says_that_a_sentence_has_no_relations() -> None:
    even = np.full((2, 2), 0.5)
    for mask, name in ((np.eye(2, dtype=bool), "relation mask"), (np.ones((2, 2), dtype=bool), "relation mask (full")):
        figure = relation_figure(RelationAttention(1, ["a", "</s>"], 1, mask, even, even))
        assert figure.axes[0].get_title().startswith(name) and ("full" in figure.axes[0].get_title()) == mask.all()


# --- command ----------------------------------------------------------------------------------------------------------

SENTENCES = commands.make_pairs(8, seed=3)


def tuples_of(source: str) -> List[List[int]]:
    """A tuple of the first and the last word; none in a sentence of one word."""
    words = len(source.split())
    return [[0, words - 1]] if words > 1 else []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A plain Transformer, and models with either mask operation whose attention is even wherever it may look."""
    folder = tmp_path_factory.mktemp("relations")
    text = {split: list(SENTENCES) for split in ("train", "valid")}
    data = binarize(folder / "data", text, "de", "en", joined=True)
    for split in text:
        rows = [pack_tuples(tuples_of(source)) for source, _ in SENTENCES]
        commands.write_relations(data, split, rows)
    relations = ("--arch", "fra_transformer_tiny", "--load-relations", *commands.SMOOTHED)
    models = {
        "plain": commands.PLAIN,
        "fill": relations,
        "multiply": (*relations, "--relation-mask-operation", "multiply"),
    }
    trained = train_models(data, folder, models, "--max-update", "1", "--no-epoch-checkpoints")
    for name in ("fill", "multiply"):
        state = torch.load(trained[name])
        for parameter, value in state["model"].items():
            if parameter.startswith("encoder.") and ".self_attn.q_proj." in parameter:
                value.zero_()
        torch.save(state, trained[name])
    return trained


def arguments(trained: Trained, model: str, *options: Any) -> List[str]:
    command = ["relations", trained.data, "--path", trained[model], "--gen-subset", "valid", "--cpu", *options]
    return [str(word) for word in command]


@pytest.mark.parametrize("layer", [(), ("--layer", 1)])
@pytest.mark.parametrize("model", ["fill", "multiply"])
def test_command_on_a_model_whose_attention_is_even(
    trained: Trained, model: str, layer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number, source = next((n, s) for n, (s, _) in enumerate(SENTENCES, start=1) if len(s.split()) > 4)
    files = output_files(tmp_path / "new", "relations")
    options = [part for option, path in files.items() for part in (f"--{option}", path)]
    analysis.main(arguments(trained, model, "--sentence", number, *layer, *options))
    report = json.loads(files["json"].read_text(encoding="utf-8"))
    tokens = [*source.split(), "</s>"]
    assert (report["sentence"], report["tokens"], report["layer"]) == (number, tokens, 1 if layer else 2)
    mask = relation_mask(pack_tuples(tuples_of(source)), len(tokens))
    np.testing.assert_array_equal(report["mask"], mask)
    even = np.full(mask.shape, 1 / len(tokens))
    np.testing.assert_allclose(report["attention"]["plain"], even, atol=1e-6)
    # A score of 0 is one of those outside the mask, too, where they are multiplied by it.
    expected = even if model == "multiply" else mask / mask.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(report["attention"]["masked"], expected, atol=1e-6)
    rows = list(csv.DictReader(files["csv"].read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(tokens) ** 2
    last = len(tokens) - 1
    (pair,) = (row for row in rows if (row["position"], row["attends to position"]) == ("1", str(last)))
    assert (pair["token"], pair["attends to token"], pair["mask"]) == (tokens[0], tokens[last - 1], "1")
    assert float(pair["attention under the mask"]) == pytest.approx(expected[0, last - 1], abs=1e-6)
    assert files["figure"].read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert f"sentence {number} of valid" in shown and "attention on these" in shown


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("plain", (), "plain/checkpoint_last.pt reads no relations: train with --arch fra_transformer"),
        ("fill", ("--layer", "3"), "--layer 3: the encoder of .*fill/checkpoint_last.pt has layers 1 to 2"),
        ("fill", ("--layer", "0"), "--layer 0"),
        ("fill", ("--sentence", "9"), "--sentence 9: split 'valid' has sentences 1 to 8"),
        ("fill", ("--model-overrides", "{'max_source_positions': 1}"), "--sentence 1: it is too long for .*fill/check"),
        ("fill", ("--gen-subset", "test"), "no split 'test' of de-en: it has train, valid"),
        ("fill", ("--model-overrides", "{'relation_ablation': 'compare'}"), "reads no relations"),
    ],
)
def test_mistakes_are_explained(trained: Trained, model: str, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        analysis.main(arguments(trained, model, *options))
