"""The regularizer of context gates (Li et al. 2020, equation 5) and the criterion that adds it."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import Any, Sequence

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.context_gates.gate_regularized_cross_entropy import gate_hinge
from fairseq_ctxgates.context_gates.gate_sums import GateSums, gate_sums
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.modules.label_smoothed_cross_entropy import smoothed_cross_entropy
from tests.helpers.models import DICTIONARY, PAD, RETURNED_GATES, SOURCES, TARGETS, make_batch, make_model, make_task

pytestmark = pytest.mark.usefixtures("float64")

LABELS = [[SOURCE, TARGET, SOURCE], [TARGET, IGNORE, SOURCE, TARGET, TARGET], [SOURCE]]
BATCH = make_batch(SOURCES, TARGETS, LABELS)
OTHER_BATCH = make_batch([[7, 8], [4]], [[9, 10], [5, 5, 5]], [[TARGET, TARGET], [SOURCE, IGNORE, TARGET]])


def make_criterion(task: Any, name: str = "gate_regularized_cross_entropy", **options: Any) -> Any:
    return task.build_criterion(OmegaConf.create({"_name": name, "sentence_avg": False, **options}))


def make_pair(arch: str = "rcg_transformer", criterion: Any = None, **model: Any) -> tuple[Any, Any]:
    """A model and its criterion, in training mode."""
    task = make_task(load_gate_labels=True)
    built = make_model(arch, task=task, **model)
    return built.train(), make_criterion(task, **(criterion or {})).train()


def loss_and_gradients(model: Any, criterion: Any, batch: dict[str, Any] = BATCH) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    loss = criterion(model, batch)[0]
    loss.backward()
    return loss.detach(), {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def assert_same(actual: Any, expected: Any) -> None:
    """Equal in float32: fairseq computes losses in float32, whatever the model's type."""
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6, check_dtype=False)


def gates_of(model: Any, batch: dict[str, Any]) -> dict[int, Tensor]:
    return model(**batch["net_input"], returns=RETURNED_GATES)[1]["context_gates"]


# --- the hinge, by hand -----------------------------------------------------------------------------------------------

# Two sentences, three positions, d = 2; the second sentence has two words and one of padding.
HAND_GATE = torch.tensor(
    [
        [[0.1, 0.7], [0.9, 0.6]],  # position 1 of the first and of the second sentence
        [[0.2, 0.8], [0.3, 0.4]],
        [[0.5, 0.0], [1.0, 0.0]],
    ],
    dtype=torch.float64,
)
HAND_LABELS = torch.tensor([[SOURCE, TARGET, IGNORE], [TARGET, SOURCE, IGNORE]])
# First sentence: below one half by 0.4 and 0; above it by 0 and 0.3; ignored.
# Second sentence: above by 0.4 and 0.1; below by 0.2 and 0.1; padding.
HAND_SUM = torch.tensor([[0.4, 0.3, 0.0], [0.5, 0.3, 0.0]])
# The gates' means are 0.4 (source), 0.5 (target), -; 0.75 (target), 0.35 (source), padding.
HAND_OF_MEAN = torch.tensor([[0.1, 0.0, 0.0], [0.25, 0.15, 0.0]])


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sum", HAND_SUM), ("mean", HAND_SUM / 2), ("hinge-of-mean", HAND_OF_MEAN)]
)
def test_hinge_by_hand(reduction: str, expected: Tensor) -> None:
    hinge = gate_hinge(HAND_GATE, HAND_LABELS, reduction)
    torch.testing.assert_close(hinge, expected.to(hinge), rtol=0, atol=1e-6)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown reduction 'hinge_of_mean'"):
        gate_hinge(HAND_GATE, HAND_LABELS, "hinge_of_mean")


def test_the_hinge_needs_the_layers_that_prepare_for_chooses() -> None:
    criterion = make_criterion(make_task(load_gate_labels=True))
    with pytest.raises(RuntimeError, match="prepare_for"):
        criterion.compute_hinge({1: HAND_GATE}, HAND_LABELS)


def test_hinge_pulls_towards_the_labels_side() -> None:
    gate = HAND_GATE.clone().requires_grad_()
    gate_hinge(gate, HAND_LABELS, "sum").sum().backward()
    # -1 raises z, +1 lowers it; 0 on the right side of one half, without a label and at padding.
    expected = [[[-1, 0], [1, 1]], [[0, 1], [-1, -1]], [[0, 0], [0, 0]]]
    torch.testing.assert_close(gate.grad, torch.tensor(expected).to(gate))


def test_hinge_of_the_mean_lets_components_differ() -> None:
    """It pulls all components of a gate alike, and only while their mean is on the wrong side."""
    gate = HAND_GATE.clone().requires_grad_()
    gate_hinge(gate, HAND_LABELS, "hinge-of-mean").sum().backward()
    expected = [[[-0.5, -0.5], [0.5, 0.5]], [[0, 0], [-0.5, -0.5]], [[0, 0], [0, 0]]]
    torch.testing.assert_close(gate.grad, torch.tensor(expected).to(gate))


def test_sums_by_hand() -> None:
    is_token = torch.tensor([[True, True, True], [True, True, False]])
    sums = gate_sums([HAND_GATE, HAND_GATE / 2], is_token, HAND_LABELS)
    # First layer: 0.1 + 0.7 + 0.2 + 0.8 + 0.5 + 0.0 + 0.9 + 0.6 + 0.3 + 0.4 = 4.5 over 10 components; second: 2.25.
    assert float(sums.gate_sum) == pytest.approx(6.75)
    # 0.01 + 0.49 + 0.04 + 0.64 + 0.25 + 0 + 0.81 + 0.36 + 0.09 + 0.16 = 2.85, and a quarter of it.
    assert float(sums.gate_square_sum) == pytest.approx(2.85 + 0.7125)
    assert float(sums.gate_count) == 20
    # Of four labelled positions, eight components: in the first layer 0.7 (source) and 0.2 (target) are on their side;
    # in the second, where every z is below one half, the four of the two target labels.
    assert float(sums.gate_agreeing) == 6
    assert float(sums.gate_labelled) == 16
    # Of eight gates: in the first layer the mean of none is on its label's side, in the second of both targets.
    assert float(sums.gate_mean_agreeing) == 2
    assert float(sums.gate_mean_labelled) == 8
    assert (sums.mean, sums.variance) == pytest.approx((6.75 / 20, 3.5625 / 20 - (6.75 / 20) ** 2))
    assert (sums.agreement, sums.mean_agreement) == (6 / 16, 2 / 8)
    without = gate_sums([HAND_GATE], is_token)
    assert float(without.gate_agreeing) == float(without.gate_mean_labelled) == 0
    half = gate_sums([torch.full((3, 2, 2), 0.5)], is_token, HAND_LABELS)
    assert (half.agreement, half.mean_agreement) == (0, 0), "one half is on neither side"
    # Rounding may leave the mean of the squares below the square of the mean.
    assert GateSums(gate_sum=3.0, gate_square_sum=2.9999, gate_count=3).variance == 0


def test_half_precision_loses_nothing() -> None:
    torch.manual_seed(1)
    gate = torch.rand(100, 8, 512).half()
    labels = torch.randint(0, 3, (8, 100))
    is_token = torch.ones(8, 100, dtype=torch.bool)
    # 409,600 components: their sum does not fit in float16.
    exact = gate_sums([gate.double()], is_token, labels)
    for key, value, exact_value in zip(GateSums._fields, gate_sums([gate], is_token, labels), exact):
        assert float(value) == pytest.approx(float(exact_value), rel=1e-4), key
    for reduction in ("mean", "sum", "hinge-of-mean"):
        hinge, exact_hinge = gate_hinge(gate, labels, reduction), gate_hinge(gate.double(), labels, reduction)
        torch.testing.assert_close(hinge, exact_hinge, rtol=1e-5, atol=0, check_dtype=False)


# --- the loss ---------------------------------------------------------------------------------------------------------


def hinge_of(z: Tensor, label: int) -> Tensor:
    return (0.5 - z).clamp(min=0) if label == SOURCE else (z - 0.5).clamp(min=0)


READINGS = {
    "mean": lambda z, label: hinge_of(z, label).mean(),
    "sum": lambda z, label: hinge_of(z, label).sum(),
    "hinge-of-mean": lambda z, label: hinge_of(z.mean(), label),
}


def expected_hinge(gates: dict[int, Tensor], layers: Sequence[int], reading: str = "hinge-of-mean") -> Tensor:
    """Equation 5 word by word."""
    total = torch.zeros((), dtype=torch.float64)
    for layer in layers:
        for sentence, row in enumerate(BATCH["gate_labels"].tolist()):
            for position, label in enumerate(row):
                if label != IGNORE:
                    total = total + READINGS[reading](gates[layer][position, sentence], label)
    return total


@pytest.mark.parametrize(
    ("options", "layers", "weight"),
    [
        ({}, [1, 2, 3], 1.0),
        ({"gate_lambda": 2.5}, [1, 2, 3], 2.5),
        ({"gate_reduction": "sum"}, [1, 2, 3], 1.0),
        ({"gate_reduction": "mean"}, [1, 2, 3], 1.0),
        ({"gate_reduction": "mean", "gate_layer_reduction": "mean"}, [1, 2, 3], 1.0),
        ({"regularized_layers": "2"}, [2], 1.0),
        ({"regularized_layers": "1,3", "gate_reduction": "sum", "gate_lambda": 0.5}, [1, 3], 0.5),
        ({"regularized_layers": "1,3", "gate_layer_reduction": "mean"}, [1, 3], 1.0),
    ],
)
def test_loss_is_cross_entropy_plus_weighted_hinge(options: dict[str, Any], layers: list[int], weight: float) -> None:
    model, criterion = make_pair(criterion={"label_smoothing": 0.1, **options})
    loss, sample_size, log = criterion(model, BATCH)
    plain = LabelSmoothedCrossEntropyCriterion(Namespace(target_dictionary=DICTIONARY), False, 0.1)(model, BATCH)
    hinge = expected_hinge(gates_of(model, BATCH), layers, options.get("gate_reduction", "hinge-of-mean"))
    if "gate_layer_reduction" in options:
        hinge = hinge / len(layers)
    assert hinge > 0.1
    assert_same(loss, plain[0] + weight * hinge)
    assert sample_size == plain[1] == 12  # 9 words and 3 ends of sentence
    assert float(log["loss"]) == pytest.approx(float(loss.detach()), rel=1e-6)
    assert float(log["nll_loss"]) == pytest.approx(float(plain[2]["nll_loss"]), rel=1e-6)
    assert float(log["gate_loss"]) == pytest.approx(float(hinge.detach()), rel=1e-6)  # before λ

    # The gradient is that of the sum of both, written out.
    _, gradients = loss_and_gradients(model, criterion)
    model.zero_grad()
    (plain[0] + weight * hinge).backward()
    for name, parameter in model.named_parameters():
        assert_same(gradients[name], parameter.grad)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_without_the_hinge_it_is_fairseqs_criterion(smoothing: float) -> None:
    model, criterion = make_pair(criterion={"label_smoothing": smoothing, "gate_lambda": 0.0})
    task = Namespace(target_dictionary=DICTIONARY)
    fairseqs: Any = LabelSmoothedCrossEntropyCriterion(task, False, smoothing)
    if not smoothing:
        fairseqs = CrossEntropyCriterion(task, False)
    loss, gradients = loss_and_gradients(model, criterion)
    expected_loss, expected_gradients = loss_and_gradients(model, fairseqs)
    assert_same(loss, expected_loss)
    assert_same(gradients, expected_gradients)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradient_of_cross_entropy_is_that_of_its_formula(smoothing: float) -> None:
    """Each position's is weighted by what comes after it."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 6, generator=generator, requires_grad=True)
    target, weights = torch.tensor([2, 0, 5, 1]), torch.tensor([1.0, 2.0, 0.0, -3.0])

    def gradient(loss: Tensor) -> Tensor:
        return torch.autograd.grad((weights * loss).sum(), logits)[0]

    log_probs = torch.log_softmax(logits, dim=-1)
    of_target, epsilon_each = log_probs[range(4), target], smoothing / 5
    expected = -(1 - smoothing) * of_target - epsilon_each * (log_probs.sum(dim=-1) - of_target)
    loss, nll = smoothed_cross_entropy(logits, target, smoothing)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(nll, -of_target, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient(loss), gradient(expected), rtol=0, atol=1e-6)


def test_cross_entropy_of_half_precision_is_that_of_single_precision() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, target = torch.randn(4, 1000, generator=generator).half(), torch.tensor([2, 0, 999, 1])
    single = smoothed_cross_entropy(logits.float(), target, 0.1)
    for found, expected in zip(smoothed_cross_entropy(logits, target, 0.1), single):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected)


def test_plain_criterion_trains_gates_without_labels() -> None:
    model, criterion = make_pair(criterion={"gate_lambda": 0.0})
    unlabelled = {key: value for key, value in BATCH.items() if key != "gate_labels"}
    loss, _, log = criterion(model, unlabelled)
    of_labelled, _, labelled_log = criterion(model, BATCH)
    assert_same(loss, of_labelled)
    assert log.keys() == labelled_log.keys()  # as several processes must log
    for logs, name in (([log], "without"), ([labelled_log], "with"), ([log, labelled_log], "with")):
        with metrics.aggregate(new_root=True) as meters:
            criterion.reduce_metrics(logs)
        assert "gate_mean" in meters.get_smoothed_values()
        assert ("gate_loss" in meters.get_smoothed_values()) == (name == "with")


def test_options_of_fairseqs_criterion() -> None:
    """Every sentence weighing the same, accuracy, and the loss of each token."""
    model, criterion = make_pair(criterion={"label_smoothing": 0.1, "sentence_avg": True, "report_accuracy": True})
    loss, sample_size, log = criterion(model, BATCH)
    assert sample_size == 3
    prediction = model(**BATCH["net_input"])[0].argmax(dim=-1)
    is_token = BATCH["target"].ne(PAD)
    assert log["total"] == 12
    assert log["n_correct"] == int(prediction.eq(BATCH["target"])[is_token].sum())
    assert_same(criterion(model, BATCH, reduce=False)[0].sum(), loss)


def test_logs_hold_no_graph() -> None:
    """fairseq keeps them over --update-freq, and a graph would keep the activations of its batch."""
    model, criterion = make_pair(criterion={"report_accuracy": True})
    log = criterion(model, BATCH)[2]
    assert [name for name, value in log.items() if torch.is_tensor(value) and value.requires_grad] == []


def test_ignored_prefix() -> None:
    """--ignore-prefix-size: the first tokens of every sentence are neither scored nor regularized."""
    model, criterion = make_pair(criterion={"label_smoothing": 0.1, "ignore_prefix_size": 1, "report_accuracy": True})
    loss, _, log = criterion(model, BATCH)
    is_scored = BATCH["target"][:, 1:].ne(PAD)
    assert log["total"] == int(is_scored.sum())
    prediction = model(**BATCH["net_input"])[0].argmax(dim=-1)[:, 1:]
    assert log["n_correct"] == int(prediction.eq(BATCH["target"][:, 1:])[is_scored].sum())
    task = Namespace(target_dictionary=DICTIONARY)
    plain = LabelSmoothedCrossEntropyCriterion(task, False, 0.1, ignore_prefix_size=1)(model, BATCH)[0]
    labels = BATCH["gate_labels"].clone()
    labels[:, 0] = IGNORE
    hinge = sum(gate_hinge(gate, labels).sum() for gate in gates_of(model, BATCH).values())
    assert_same(loss, plain + hinge)
    assert_same(criterion(model, BATCH, reduce=False)[0].sum(), loss)


def test_hinge_is_in_training_only() -> None:
    model, criterion = make_pair(criterion={"label_smoothing": 0.1})
    model.eval(), criterion.eval()
    loss, _, log = criterion(model, BATCH)
    plain = LabelSmoothedCrossEntropyCriterion(Namespace(target_dictionary=DICTIONARY), False, 0.1)
    assert_same(loss, plain(model, BATCH)[0])
    expected = expected_hinge(gates_of(model, BATCH), [1, 2, 3])
    assert float(log["gate_loss"]) == pytest.approx(float(expected), rel=1e-6)
    assert float(log["loss"]) == pytest.approx(float(loss.detach()), rel=1e-6)


# --- the way of the gradient ------------------------------------------------------------------------------------------


def hinge_gradients(model: Any, criterion: Any) -> dict[str, Tensor]:
    """The difference between the gradients of λ = 1 and of λ = 0."""
    criterion.gate_lambda = 0.0
    _, without = loss_and_gradients(model, criterion)
    criterion.gate_lambda = 1.0
    _, gradients = loss_and_gradients(model, criterion)
    return {name: gradients[name] - without[name] for name in without}


def test_gradient_reaches_the_gates() -> None:
    for name, gradient in hinge_gradients(*make_pair()).items():
        if ".connection." in name:
            assert gradient.abs().max() > 1e-3, name
        if "output_projection" in name:
            assert gradient.abs().max() < 1e-9, name


def test_gradient_stays_below_the_regularized_layer() -> None:
    gradients = hinge_gradients(*make_pair(criterion={"regularized_layers": "2"}))
    for layer, is_reached in ((1, True), (2, True), (3, False)):
        gradient = gradients[f"decoder.layers.{layer - 1}.connection.fc1.weight"]
        assert bool(gradient.abs().max() > 1e-9) == is_reached, layer


def test_training_on_the_hinge_moves_gates_to_their_side() -> None:
    """A step against the gradient of the hinge alone lowers the hinge."""
    model, criterion = make_pair()
    before = float(criterion(model, BATCH)[2]["gate_loss"])
    for name, gradient in hinge_gradients(model, criterion).items():
        model.get_parameter(name).data -= 0.05 * gradient
    assert float(criterion(model, BATCH)[2]["gate_loss"]) < 0.95 * before


def test_activation_checkpointing_changes_nothing() -> None:
    plain, criterion = make_pair()
    checkpointed, other_criterion = make_pair(checkpoint_activations=True)
    loss, gradients = loss_and_gradients(plain, criterion)
    same_loss, same_gradients = loss_and_gradients(checkpointed, other_criterion)
    assert_same(same_loss, loss)
    assert_same(same_gradients, gradients)
    for name, gradient in hinge_gradients(checkpointed, other_criterion).items():
        if ".connection." in name:
            assert gradient.abs().max() > 1e-3, name


# --- LayerDrop --------------------------------------------------------------------------------------------------------


def seed_that_keeps(model: Any, layers: set[int]) -> int:
    """A random seed under which LayerDrop keeps just these layers; nothing else in the model is random."""
    for seed in range(1000):
        torch.manual_seed(seed)
        with torch.no_grad():
            if set(gates_of(model, BATCH)) == layers:
                return seed
    raise AssertionError(f"LayerDrop never keeps {layers}")


def without_layer_two(state: dict[str, Tensor]) -> dict[str, Tensor]:
    def moved(name: str) -> str:
        return name.replace("decoder.layers.2.", "decoder.layers.1.")

    return {moved(name): value for name, value in state.items() if not name.startswith("decoder.layers.1.")}


def test_layer_drop_keeps_the_numbers() -> None:
    model, criterion = make_pair(criterion={"regularized_layers": "3"}, decoder_layerdrop=0.5)
    shallow, same = make_pair(criterion={"regularized_layers": "2"}, decoder_layers=2)
    shallow.load_state_dict(without_layer_two(model.state_dict()))
    seed = seed_that_keeps(model, {1, 3})

    torch.manual_seed(seed)
    gates, expected = gates_of(model, BATCH), gates_of(shallow, BATCH)
    torch.testing.assert_close(gates[1], expected[1])
    torch.testing.assert_close(gates[3], expected[2])

    torch.manual_seed(seed)
    loss, gradients = loss_and_gradients(model, criterion)
    expected_loss, expected_gradients = loss_and_gradients(shallow, same)
    assert_same(loss, expected_loss)
    assert_same(without_layer_two(gradients), expected_gradients)


def test_layer_drop_of_the_regularized_layer() -> None:
    model, criterion = make_pair(criterion={"regularized_layers": "2"}, decoder_layerdrop=0.5)
    torch.manual_seed(seed_that_keeps(model, {1, 3}))
    assert float(criterion(model, BATCH)[2]["gate_loss"]) == 0


def test_layer_drop_of_every_layer() -> None:
    model, criterion = make_pair(decoder_layerdrop=0.9)
    seed = seed_that_keeps(model, set())
    torch.manual_seed(seed)
    loss, sample_size, log = criterion(model, BATCH)
    torch.manual_seed(seed)
    plain = CrossEntropyCriterion(Namespace(target_dictionary=DICTIONARY), False)(model, BATCH)[0]
    assert_same(loss, plain)
    with metrics.aggregate() as meters:
        criterion.reduce_metrics([log])
    assert meters.get_smoothed_value("gate_loss") == 0
    assert log["gate_mean_labelled"] == log["gate_labelled"] == log["gate_count"] == 0


# --- what is logged ---------------------------------------------------------------------------------------------------

METERS = ("gate_loss", "gate_mean", "gate_var", "gate_agreement", "gate_mean_agreement", "loss", "nll_loss")


def logged(criterion: Any, updates: list[list[dict[str, Any]]]) -> dict[str, float]:
    """What fairseq's meters show after some updates, each with the logs of its batches."""
    with metrics.aggregate(new_root=True) as meters:
        for logs in updates:
            criterion.reduce_metrics(logs)
    values = meters.get_smoothed_values()
    return {name: float(values[name]) for name in METERS}


@pytest.mark.parametrize("sentence_avg", [False, True])
def test_meters_equal_direct_computation(sentence_avg: bool) -> None:
    """Also with --sentence-avg, under which fairseq's ``loss`` is by sentence and its ``nll_loss`` by token."""
    model, criterion = make_pair(criterion={"sentence_avg": sentence_avg})
    model.eval(), criterion.eval()
    components, agreeing, labelled, gate_loss, tokens = [], 0, 0, 0.0, 0
    gates_agreeing, gates_labelled = 0, 0
    logs = []
    for batch in (BATCH, OTHER_BATCH):
        logs.append(criterion(model, batch)[2])
        is_token = batch["target"].ne(PAD)
        tokens += int(is_token.sum())
        for gate in gates_of(model, batch).values():
            z = gate.detach().transpose(0, 1)
            components.append(z[is_token].flatten())
            source, target = z[batch["gate_labels"] == SOURCE], z[batch["gate_labels"] == TARGET]
            agreeing += int((source > 0.5).sum() + (target < 0.5).sum())
            labelled += source.numel() + target.numel()
            gates_agreeing += int((source.mean(-1) > 0.5).sum() + (target.mean(-1) < 0.5).sum())
            gates_labelled += len(source) + len(target)
            gate_loss += float((0.5 - source.mean(-1)).clamp(min=0).sum() + (target.mean(-1) - 0.5).clamp(min=0).sum())
    z = torch.cat(components)
    expected = {
        "gate_mean": float(z.mean()),
        "gate_var": float(z.var(unbiased=False)),
        "gate_agreement": agreeing / labelled,
        "gate_mean_agreement": gates_agreeing / gates_labelled,
        "gate_loss": gate_loss / tokens,
    }
    assert abs(expected["gate_mean"] - 0.5) > 1e-3 and abs(expected["gate_agreement"] - 0.5) > 1e-3
    for updates in ([logs], [[log] for log in logs]):  # one update of two batches, and two updates
        values = logged(criterion, updates)
        for name, value in expected.items():
            assert values[name] == pytest.approx(value, abs=6e-5), name


def test_logs_summed_over_workers_give_the_same() -> None:
    """fairseq adds the logs of all workers, key by key, when a criterion says that it may."""
    model, criterion = make_pair()
    assert criterion.logging_outputs_can_be_summed()
    logs = [criterion(model, batch)[2] for batch in (BATCH, OTHER_BATCH)]
    assert logs[0].keys() == logs[1].keys()
    summed = {key: float(logs[0][key]) + float(logs[1][key]) for key in logs[0]}
    assert logged(criterion, [[summed]]) == pytest.approx(logged(criterion, [logs]), abs=2e-4)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["context_transformer", "transformer"])
def test_refuses_a_model_without_gates(arch: str) -> None:
    with pytest.raises(UserError, match="rcg_transformer"):
        make_pair(arch)


@pytest.mark.parametrize(("layers", "remedy"), [("9", "1 to 6"), ("3-1", "--regularized-layers"), ("x", "all")])
def test_refuses_layers_that_do_not_exist(layers: str, remedy: str) -> None:
    message = rf"(?=.*--regularized-layers)(?=.*{re.escape(layers)})(?=.*{re.escape(remedy)})"
    with pytest.raises(UserError, match=message):
        make_pair(criterion={"regularized_layers": layers}, decoder_layers=6)


@pytest.mark.parametrize("name", ["context_translation", "translation"])
def test_refuses_to_regularize_without_labels(name: str) -> None:
    task: Any = make_task()
    if name == "translation":
        task = TranslationTask(TranslationConfig(), DICTIONARY, DICTIONARY)
    make_model("rcg_transformer", task=task)
    with pytest.raises(UserError, match="--load-gate-labels"):
        make_criterion(task)


def test_without_lambda_no_labels_are_needed() -> None:
    task = make_task()
    make_model("rcg_transformer", task=task)
    assert make_criterion(task, gate_lambda=0.0).gate_lambda == 0


@pytest.mark.parametrize(
    "option", [{"gate_reduction": "mean"}, {"gate_layer_reduction": "mean"}, {"regularized_layers": "1"}]
)
def test_refuses_options_of_the_regularizer_without_labels(option: dict[str, Any]) -> None:
    task = make_task()
    make_model("rcg_transformer", task=task)
    flag = "--" + next(iter(option)).replace("_", "-")
    with pytest.raises(UserError, match=rf"{flag} .*--load-gate-labels"):
        make_criterion(task, gate_lambda=0.0, **option)
