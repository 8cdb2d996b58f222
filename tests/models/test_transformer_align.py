"""The Transformer that learns alignments: fairseq's ``transformer_align`` with every mechanism off, and with them."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment,
)
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from torch import Tensor

from fairseq_ctxgates.errors import UserError
from tests.helpers.models import (
    DICTIONARY,
    SOURCES,
    TARGETS,
    assert_close,
    build_model,
    make_batch,
    make_model,
    make_side_inputs,
    make_task,
)

pytestmark = pytest.mark.usefixtures("float64")

BATCH = make_batch(SOURCES, TARGETS)
SOURCE, TARGET = BATCH["net_input"]["src_tokens"], BATCH["target"]
# As fairseq's collater gives them: the row is that of the flattened targets, the column that of the padded source.
BATCH["alignments"] = torch.tensor([[2, 0], [0, 1], [1, 1], [5, 2], [3, 6], [4, 9], [2, 12]])
BATCH["align_weights"] = torch.tensor([1.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0])
INPUTS = make_side_inputs(SOURCE)
OPTIONS: list[dict[str, Any]] = [
    {"alignment_layer": 1},
    {"alignment_layer": 0, "alignment_heads": 2},
    {"alignment_layer": 2, "full_context_alignment": True},
]
MECHANISMS = ("context", "rcg", "isg", "fra", "car")


def loss_of(model: Any, weight: float = 0.3) -> tuple[Tensor, dict[str, Any]]:
    """The loss with alignments, in which theirs has this weight, and what is logged."""
    inputs = {name: INPUTS[name] for name in getattr(model, "input_names", ()) if name in INPUTS}
    criterion = LabelSmoothedCrossEntropyCriterionWithAlignment(make_task(), False, 0.1, alignment_lambda=weight)
    loss, _, log = criterion(model, {**BATCH, "net_input": {**BATCH["net_input"], **inputs}})
    return loss, log


@pytest.mark.parametrize("options", OPTIONS)
def test_without_mechanisms_it_is_fairseqs(options: dict[str, Any]) -> None:
    """With the same parameters it has the same losses and gradients."""
    model = make_model("context_transformer_align", **options).train()
    expected = make_model("transformer_align", **options).train()
    # fairseq 0.12.2's encoder layers hold more names, for a fast path that is not taken with gradients.
    expected.load_state_dict(model.state_dict(), strict=False)
    losses, logs = zip(*(loss_of(one) for one in (model, expected)))
    assert logs[0]["alignment_loss"] > 0
    for name in ("loss", "nll_loss", "alignment_loss"):
        assert logs[0][name] == pytest.approx(logs[1][name], rel=1e-7)  # both round attention to float32
    for loss in losses:
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in expected.named_parameters()}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("full_context", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_learns_alignments(mechanism: str, full_context: bool) -> None:
    """A step down the gradient makes the alignment loss fall; every parameter has a gradient, as distributed training
    wants it."""
    options: dict[str, Any] = {"alignment_layer": 1, "full_context_alignment": full_context}
    model = make_model(f"{mechanism}_transformer_align", **options).train()
    loss, log = loss_of(model, weight=100.0)
    loss.backward()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            parameter -= 1e-5 * parameter.grad
    assert loss_of(model)[1]["alignment_loss"] < log["alignment_loss"] - 1e-3


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_full_context_sees_later_words(mechanism: str) -> None:
    """The alignment of the first word changes with the last word of the target, and without the option does not; the
    prediction never does."""
    changed = BATCH["net_input"]["prev_output_tokens"].clone()
    changed[1, 5] = 9
    for full_context in (False, True):
        options: dict[str, Any] = {"alignment_layer": 1, "full_context_alignment": full_context}
        model = make_model(f"{mechanism}_transformer_align", **options)
        inputs = {name: INPUTS[name] for name in model.input_names if name in INPUTS}
        with torch.no_grad():
            logits, extra = model(**BATCH["net_input"], **inputs)
            changed_logits, changed_extra = model(**{**BATCH["net_input"], "prev_output_tokens": changed}, **inputs)
        assert_close(changed_logits[1, 0], logits[1, 0])
        differs = (changed_extra["attn"][0][1, 0] - extra["attn"][0][1, 0]).abs().max() > 1e-4
        assert bool(differs) == full_context


def test_decoding_steps_return_the_alignment() -> None:
    """fairseq's generator prints the attention that it is given in each step, unless the alignment is of full
    context."""
    model = make_model("context_transformer_align", alignment_layer=1, alignment_heads=2)
    with torch.no_grad():
        expected = model(**BATCH["net_input"])[1]["attn"][0]
        encoder_out = model.encoder(SOURCE)
        state: dict[str, Any] = {}
        for step in range(1, 4):
            previous = BATCH["net_input"]["prev_output_tokens"][:, :step]
            attention = model.decoder(previous, encoder_out=encoder_out, incremental_state=state)[1]["attn"][0]
            assert_close(attention[:2, 0], expected[:2, step - 1])  # the third target is shorter


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alignment_layer": 3}, "--alignment-layer 3: the decoder's layers are 0 to 2"),
        ({"alignment_layer": 1, "alignment_heads": 4}, "--alignment-heads 4: the decoder's heads are 1 to 3"),
        ({"alignment_layer": 1, "alignment_heads": 0}, "--alignment-heads 0: the decoder's heads are 1 to 3"),
    ],
)
def test_layers_and_heads_that_are_not_there(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_model("context_transformer_align", **options)


def test_the_layer_that_learns_to_align_is_not_dropped() -> None:
    layers: dict[str, Any] = {"alignment_layer": 1, "decoder_layerdrop": 0.2}
    with pytest.raises(UserError, match="--decoder-layerdrop 0.2 would also drop the layer that learns to align"):
        build_model("context_transformer_align", make_task(load_alignments=True), **layers)
    build_model("context_transformer_align", **layers)


def test_a_task_without_a_configuration() -> None:
    """As fairseq's for several language pairs, which have arguments."""
    arch = "context_transformer_align_tiny"
    task = Namespace(source_dictionary=DICTIONARY, target_dictionary=DICTIONARY, cfg=None)
    assert MODEL_REGISTRY[arch].build_model(MODEL_DATACLASS_REGISTRY[arch](), task).max_positions()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_presets_are_those_without_alignment(mechanism: str) -> None:
    """Sizes and mechanisms are those of the architecture without alignment, which is of the layer before the last in
    fairseq's sizes."""
    for size, layers in {"": 6, "_iwslt": 6, "_big": 6, "_tiny": 2}.items():
        config = MODEL_DATACLASS_REGISTRY[f"{mechanism}_transformer_align{size}"]()
        plain = MODEL_DATACLASS_REGISTRY[f"{mechanism}_transformer{size}"]()
        for option in vars(plain):
            if option != "_name":
                assert getattr(config, option) == getattr(plain, option)
        assert config.alignment_layer == layers - 2 and config.alignment_heads == 1
