"""RNNSearch in training: the regularizer of its context gates."""

from __future__ import annotations

from typing import Any, Dict

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.context_gates.gate_regularized_cross_entropy import gate_hinge
from tests.helpers.models import RETURNED_GATES, SOURCES, TARGETS, make_batch, make_task
from tests.helpers.reference_rnnsearch import make_rnnsearch

LABELS = [[SOURCE, TARGET, SOURCE], [TARGET, IGNORE, SOURCE, TARGET, TARGET], [SOURCE]]
LABELLED = make_batch(SOURCES, TARGETS, LABELS)


def hinge_gradients(model: Any, criterion: Any) -> Dict[str, Tensor]:
    """The difference between the gradients of λ = 1 and of λ = 0."""
    gradients = []
    for weight in (0.0, 1.0):
        criterion.gate_lambda = weight
        model.zero_grad()
        criterion(model, LABELLED)[0].backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    return {name: gradients[1][name] - gradients[0][name] for name in gradients[0]}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["source", "target", "both"])
def test_regularizer_of_context_gates(kind: str) -> None:
    """The loss is fairseq's plus the hinge. The gradient of the hinge reaches the gate, and moves the weight of the
    source towards its label."""
    task = make_task(load_gate_labels=True)
    model = make_rnnsearch("ctxgate_rnnsearch", task, context_gate=kind).train()
    options = {"_name": "gate_regularized_cross_entropy", "sentence_avg": False, "label_smoothing": 0.1}
    criterion = task.build_criterion(OmegaConf.create(options)).train()

    loss, _, log = criterion(model, LABELLED)
    (weights,) = model(**LABELLED["net_input"], returns=RETURNED_GATES)[1]["context_gates"].values()
    plain = LabelSmoothedCrossEntropyCriterion(task, False, 0.1)(model, LABELLED)[0]
    hinge = gate_hinge(weights, LABELLED["gate_labels"]).sum()
    assert float(loss.detach()) == pytest.approx(float((plain + hinge).detach()), rel=1e-5)

    gradients = hinge_gradients(model, criterion)
    for name, gradient in gradients.items():
        if ".connection." in name:
            assert gradient.abs().max() > 1e-4, name
        if "output" in name:
            assert gradient.abs().max() < 1e-9, name
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter -= 0.2 * gradients[name]
    assert float(criterion(model, LABELLED)[2]["gate_loss"]) < 0.95 * float(log["gate_loss"])
