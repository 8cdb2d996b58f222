"""Every architecture takes a training step as ``--amp``, ``--bf16`` and ``--fp16`` run it, translates in their types,
and has its gates regularized in them: on a GPU if there is one, and there in float32 as well; else on the CPU, as far
as torch can."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Iterator, NamedTuple

import pytest
import torch
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from omegaconf import OmegaConf

from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.models.context_model import ContextModel
from fairseq_ctxgates.modules.interpolation import interpolate
from tests.helpers.models import DICTIONARY, PAD, make_batch, make_side_inputs, make_task

pytestmark = pytest.mark.usefixtures("without_tf32")


class Precision(NamedTuple):
    """An option of fairseq for half precision.

    Attributes:
        tolerance: of the loss, relative to that in float32 on the CPU
        of_a_word: of its log-probability
    """

    option: str
    parameters: torch.dtype
    autocast: torch.dtype | None
    tolerance: float
    of_a_word: float

    @contextlib.contextmanager
    def on_device(self, model: Any) -> Iterator[None]:
        """Put a model on the device as the option does, and skip the test where this torch has no such type there."""
        model.to(device=DEVICE, dtype=self.parameters)
        is_autocast = self.autocast is not None
        try:
            with torch.autocast(DEVICE, dtype=self.autocast) if is_autocast else contextlib.nullcontext():
                yield
        except RuntimeError as error:
            if DEVICE == "cpu" and "not implemented for" in str(error):
                pytest.skip(f"this torch has no {self.option} on the CPU: {error}")
            raise


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = [
    Precision("amp", torch.float32, torch.bfloat16, 0.03, 0.08),
    Precision("bf16", torch.bfloat16, None, 0.03, 0.08),
    Precision("fp16", torch.float16, None, 0.01, 0.01),
]
if DEVICE == "cuda":
    PRECISIONS += [
        Precision("amp float16", torch.float32, torch.float16, 0.01, 0.01),
        Precision("float32", torch.float32, None, 1e-4, 1e-4),
    ]
SOURCES = [[4, 5, 6, 7, 8], [9, 10], [11, 3, 13]]
BATCH = make_batch(
    sources=SOURCES,
    targets=[[14, 15, 16], [17, 18, 19, 4, 5], [6]],
    labels=[[SOURCE, TARGET, IGNORE], [TARGET, SOURCE, SOURCE, TARGET, TARGET], [SOURCE]],
)
INPUTS = make_side_inputs(BATCH["net_input"]["src_tokens"])
ARCHITECTURES = sorted(
    name for name, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, ContextModel) and name.endswith("_tiny")
)
# What the named architectures leave out.
OTHERS: list[tuple[str, dict[str, Any]]] = [
    *(("fra_transformer_tiny", {"relation_fusion": fusion}) for fusion in ("linear", "gate", "concat-gate")),
    ("fra_transformer_tiny", {"relation_mask_operation": "multiply", "separate_relation_attention": True}),
    ("isg_transformer_tiny", {"context_gate": "interpolate", "relation_fusion": "gate", "smoothing": "ccwm"}),
    *(("isg_rnnsearch_tiny", {"context_gate": gate, "smoothing": "ccwm"}) for gate in ("source", "target", "both")),
    *(("car_transformer_tiny", {"smoothing_words": "all", "smoothing_side": side}) for side in ("encoder", "both")),
]


in_every_precision = pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.option)
by_every_architecture = pytest.mark.parametrize(("arch", "options"), [*((name, {}) for name in ARCHITECTURES), *OTHERS])


def build(arch: str, options: dict[str, Any], task: Any = None) -> tuple[Any, dict[str, Any]]:
    """A model, and the batch with what the model reads."""
    torch.manual_seed(1)
    model = (task or make_task()).build_model(OmegaConf.create({"_name": arch, "dropout": 0.0, **options}))
    inputs = {name: INPUTS[name] for name in model.input_names if name in INPUTS}
    return model, {**BATCH, "net_input": {**BATCH["net_input"], **inputs}}


def on_device(batch: dict[str, Any]) -> dict[str, Any]:
    moved: dict[str, Any] = utils.move_to_cuda(batch) if DEVICE == "cuda" else batch
    return moved


def check_gradients_are_finite(model: Any) -> None:
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())


@in_every_precision
@by_every_architecture
def test_a_step(arch: str, options: dict[str, Any], precision: Precision) -> None:
    model, batch = build(arch, options)
    expected = loss(model, batch)
    batch = on_device(batch)
    with precision.on_device(model):
        found = loss(model, batch)
        found.backward()
    torch.testing.assert_close(found.cpu(), expected, rtol=precision.tolerance, atol=0)
    check_gradients_are_finite(model)


@in_every_precision
@pytest.mark.parametrize("arch", ["rcg_transformer_tiny", "ctxgate_rnnsearch_tiny"])
def test_regularized_gates(arch: str, precision: Precision) -> None:
    """The hinge is a sum of few numbers near one half: its tolerance is of the loss."""
    task = make_task(load_gate_labels=True)
    model, batch = build(arch, {}, task)
    criterion = task.build_criterion(
        OmegaConf.create({"_name": "gate_regularized_cross_entropy", "sentence_avg": False})
    )
    expected, _, expected_logs = criterion(model, batch)
    batch = on_device(batch)
    with precision.on_device(model):
        found, _, logs = criterion(model, batch)
        found.backward()
    torch.testing.assert_close(found.cpu().float(), expected, rtol=precision.tolerance, atol=0)
    assert float(logs["gate_loss"]) == pytest.approx(
        float(expected_logs["gate_loss"]), abs=precision.tolerance * expected.item()
    )
    check_gradients_are_finite(model)


@pytest.mark.parametrize("precision", [one for one in PRECISIONS if one.autocast is None], ids=lambda one: one.option)
@by_every_architecture
def test_a_search(arch: str, options: dict[str, Any], precision: Precision) -> None:
    """What the search says of the words that it found is what the same model on the CPU says in float32."""
    model, batch = build(arch, options)
    reference = copy.deepcopy(model).eval()
    with precision.on_device(model.eval()):
        generator = SequenceGenerator([model], DICTIONARY, beam_size=2, max_len_b=6)
        best = [hypotheses[0] for hypotheses in generator.generate([model], on_device(batch))]
    targets = [hypothesis["tokens"].tolist()[:-1] for hypothesis in best]  # all but the end of sentence
    targeted = make_batch(SOURCES, targets)
    targeted["net_input"] = {**batch["net_input"], "prev_output_tokens": targeted["net_input"]["prev_output_tokens"]}
    for found, (expected,) in zip(best, SequenceScorer(DICTIONARY).generate([reference], targeted)):
        assert found["tokens"].tolist() == expected["tokens"].tolist()
        torch.testing.assert_close(
            found["positional_scores"].cpu().float(), expected["positional_scores"], rtol=0, atol=precision.of_a_word
        )


def loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    logits = model(**batch["net_input"])[0].float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["target"].flatten(), ignore_index=PAD)


def test_interpolation_of_mixed_types() -> None:
    start, end, weight = torch.tensor([1.0]), torch.tensor([3.0]).bfloat16(), torch.tensor([0.25]).half()
    mixed = interpolate(start, end, weight)
    assert mixed.dtype == torch.float32
    assert mixed.item() == 1.5
    assert interpolate(start.half(), end.half(), weight.float()).dtype == torch.float32
