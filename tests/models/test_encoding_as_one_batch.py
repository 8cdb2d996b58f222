"""Where a layer may run only once in a training step, the encoder reads the source and the preceding sentences as one
batch."""

from __future__ import annotations

from typing import Any, Iterator

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.helpers.models import (
    BEFORE,
    SOURCES,
    TARGETS,
    assert_close,
    make_batch,
    make_model,
    make_side_inputs,
    preceding_inputs,
)

BATCH = make_batch(SOURCES, TARGETS)["net_input"]

RELATIONS = {"relation_fusion": "gate"}
CASES: dict[str, dict[str, Any]] = {
    "one": {},
    "one, longer than the sources": {"longer": True},
    "three": {"inter_sentence_context": 3},
    "smoothed": {"smoothing": "fcwm", "smoothing_words": "all"},
    "relations": RELATIONS,
    "relations, multiplied": {**RELATIONS, "relation_mask_operation": "multiply", "inter_sentence_context": 3},
    "null": {"inter_sentence_ablation": "null"},
}


def make(longer: bool = False, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A model without dropout, and its input."""
    further = make_side_inputs(BATCH["src_tokens"])
    if longer:
        further["preceding_tokens"] = further["preceding_tokens"][:, [0, 0, 0, 1, 0, 1, 0, 0, 0, 2]]
    if options.get("inter_sentence_context", 1) > 1:
        further.update(preceding_inputs(BEFORE))
    if "relation_fusion" not in options:
        del further["relation_mask"]
    return make_model("isg_transformer", **options), {**BATCH, **further}


def count_runs(layer: nn.Module) -> list[nn.Module]:
    """A list to which each run of a layer adds the layer."""
    runs: list[nn.Module] = []
    layer.register_forward_hook(lambda module, *_: runs.append(module))
    return runs


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_the_encodings_are_the_same(case: str) -> None:
    found = []
    for training in (False, True):
        model, inputs = make(**CASES[case], checkpoint_activations=True)
        del inputs["prev_output_tokens"]
        runs = count_runs(model.encoder.layers[0])
        found.append(model.encoder.train(training)(**inputs, return_all_hiddens=True))
        assert (len(runs) == 1) == training
    expected, actual = found
    assert actual.keys() == expected.keys()
    is_word = ~expected["encoder_padding_mask"][0]
    for name, tensors in expected.items():
        assert [one.shape for one in actual[name]] == [one.shape for one in tensors], name
        for one, other in zip(tensors, actual[name]):
            if name in ("encoder_out", "encoder_states", "relation_out"):
                one, other = one.transpose(0, 1)[is_word], other.transpose(0, 1)[is_word]
            if name == "preceding_out":
                words = ~expected["preceding_padding_mask"][0]
                one, other = one.transpose(0, 1)[words], other.transpose(0, 1)[words]
            assert_close(other.to(one.dtype), one)


def test_a_step_adds_quantization_noise_to_a_matrix_once() -> None:
    """A matrix that is noised twice has more zeros, and the rest is scaled up twice."""
    model, inputs = make(quant_noise_pq=0.5, quant_noise_pq_block_size=1)
    linear = model.encoder.layers[0].fc1
    before = linear.weight.detach().clone()
    model.train()(**inputs)
    scale = linear.weight.detach() / before
    assert {round(value, 4) for value in scale.flatten().tolist()} == {0.0, 2.0}


@pytest.fixture
def _process_group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.process  # opens a socket
@pytest.mark.usefixtures("_process_group")
@pytest.mark.parametrize("case", CASES)
def test_checkpointed_layers_are_trained_by_torchs_distributed_training(case: str) -> None:
    """It is fairseq's default, and refuses parameters of a layer whose activations are computed again twice."""
    model, inputs = make(**CASES[case], checkpoint_activations=True)
    wrapped = DistributedDataParallel(nn.Module.train(model))
    for _ in range(2):
        wrapped(**inputs)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
