"""Cross entropy with the regularizer of context gates (Li et al. 2020, equation 5)."""

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple

import torch
from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.dataclass import ChoiceEnum
from torch import Tensor

from fairseq_ctxgates.compat import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
    metrics,
)
from fairseq_ctxgates.configuration import as_flag
from fairseq_ctxgates.context_gates.context_gate import GATES
from fairseq_ctxgates.context_gates.gate_labels import gate_signs
from fairseq_ctxgates.context_gates.gate_sums import GateSums, gate_sums
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.layer_list import parse_layers
from fairseq_ctxgates.modules.label_smoothed_cross_entropy import smoothed_cross_entropy

ReductionChoice = ChoiceEnum(["hinge-of-mean", "mean", "sum"])
LayerReductionChoice = ChoiceEnum(["sum", "mean"])


@dataclass
class GateRegularizedCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """Options of ``gate_regularized_cross_entropy``."""

    gate_lambda: float = field(
        default=1.0,
        metadata={"help": "weight of the gates' regularizer; 0: no regularizer, and no labels are needed"},
    )
    gate_reduction: ReductionChoice = field(  # type: ignore[valid-type]
        default="hinge-of-mean",
        metadata={
            "help": "the regularizer of a gate, which is a vector: the hinge of its components' mean (hinge-of-mean), "
            "or the mean or the sum of its components' hinges (mean, sum); it is summed over positions"
        },
    )
    gate_layer_reduction: LayerReductionChoice = field(  # type: ignore[valid-type]
        default="sum", metadata={"help": "how the regularizer is reduced over the regularized layers"}
    )
    regularized_layers: str = field(
        default="all", metadata={"help": "the decoder layers whose gates are regularized: all, 6 or 1,3-5"}
    )


def gate_hinge(gate: Tensor, labels: Tensor, reduction: str = "hinge-of-mean") -> Tensor:
    """The regularizer of one layer at each position,

        z* max(0.5 - z, 0) + (1 - z*) max(z - 0.5, 0),

    where z is each component of the gate, and ``reduction`` turns the components' hinges into one number (Li et al.
    2020, equation 5, which adds the vector of the hinges to a number). By default z is the mean of the components, a
    reading of our own (docs/decisions.md).

    Args:
        gate: z, the weight of the source, (target length, batch, embed dim), or of several layers at once, (layers,
            target length, batch, embed dim)
        labels: z*, (batch, target length): SOURCE, TARGET, or IGNORE, where the result is 0
        reduction: ``hinge-of-mean``, or ``mean`` or ``sum`` of the components' hinges

    Returns:
        (batch, target length), or (layers, batch, target length)

    Raises:
        ValueError: the reduction has another name.
    """
    z = gate.mean(dim=-1, keepdim=True, dtype=torch.float) if reduction == "hinge-of-mean" else gate.float()
    # With the sign 1 - 2 z*, and 0 without a label, both terms are max(sign (z - 0.5), 0).
    hinges = torch.relu(gate_signs(labels).t().unsqueeze(-1) * (z - 0.5))
    if reduction == "sum":
        hinge = hinges.sum(dim=-1)
    elif reduction in ("hinge-of-mean", "mean"):
        hinge = hinges.mean(dim=-1)
    else:
        raise ValueError(f"unknown reduction {reduction!r}")
    return hinge.transpose(-1, -2)


@register_criterion("gate_regularized_cross_entropy", dataclass=GateRegularizedCrossEntropyConfig)
class GateRegularizedCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Cross entropy, label-smoothed or plain, plus λ times the hinge of the context gates (Li et al. 2020, equation 5).

    The hinge pulls a gate z to its label's side of one half. It is summed over positions, like the negative
    log-likelihood, and added in training only.

    The criterion logs ``gate_loss``, the hinge for each token, before λ and not in bits: the sum, or the mean, over the
    regularized layers, divided by the number of all target tokens, also of those without a label. Of the gates of all
    layers at all tokens, regularized or not, it logs ``gate_mean``, ``gate_var``, ``gate_agreement`` (the share of
    components on their label's side) and ``gate_mean_agreement`` (the share of gates whose mean over the components is
    on their label's side).
    """

    _layers: Tuple[int, ...] = ()  # the regularized layers, which prepare_for sets

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int,
        report_accuracy: bool,
        gate_lambda: float,
        gate_reduction: str,
        gate_layer_reduction: str,
        regularized_layers: str,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        if not hasattr(task.cfg, "load_gate_labels"):
            raise UserError(
                "--criterion gate_regularized_cross_entropy needs --task context_translation (with --load-gate-labels)"
            )
        if not 0 <= gate_lambda < math.inf:
            raise UserError(f"--gate-lambda {gate_lambda}: it must be at least 0, and finite")
        self.gate_lambda = gate_lambda
        self.gate_reduction = str(gate_reduction)
        self.gate_layer_reduction = str(gate_layer_reduction)
        self.regularized_layers = regularized_layers

    def prepare_for(self, model: Any) -> None:
        """Choose the regularized layers of the model that is to be trained.

        Raises:
            UserError: the model or the data do not fit this criterion.
        """
        gated = model.layers_that_return(GATES) if hasattr(model, "layers_that_return") else ()
        if not gated:
            raise UserError(
                "--criterion gate_regularized_cross_entropy needs an architecture with context gates: "
                "--arch rcg_transformer, or --context-gate"
            )
        if model.decoder.adaptive_softmax is not None:
            raise UserError("--adaptive-softmax-cutoff needs --criterion adaptive_loss, which has no gate regularizer")
        layers = parse_layers(self.regularized_layers, len(model.decoder.returnable), "--regularized-layers")
        self._layers = tuple(layer for layer in layers if layer in gated)
        if not self._layers:
            raise UserError(f"--regularized-layers {self.regularized_layers}: the layers with a gate are {gated}")
        if not self.task.cfg.load_gate_labels:
            self._refuse_regularizer_without_labels()

    def _refuse_regularizer_without_labels(self) -> None:
        if self.gate_lambda:
            raise UserError("--gate-lambda above 0 needs labels: give --load-gate-labels (or --gate-lambda 0)")
        for option in ("gate_reduction", "gate_layer_reduction", "regularized_layers"):
            if getattr(self, option) != getattr(GateRegularizedCrossEntropyConfig, option):
                raise UserError(
                    f"{as_flag(option)} does nothing without labels: give --load-gate-labels, or leave it out"
                )

    def forward(self, model: Any, sample: Dict[str, Any], reduce: bool = True) -> Tuple[Tensor, int, Dict[str, Any]]:
        """Compute the loss of a batch; see fairseq's criterions for what is returned."""
        is_token = sample["target"].ne(self.padding_idx)
        is_scored = is_token.clone()
        is_scored[:, : self.ignore_prefix_size] = False
        scored = is_scored.flatten().nonzero().squeeze(1)
        logits, extra = model(**sample["net_input"], returns=(GATES,), return_attention=False, output_positions=scored)
        target = sample["target"].flatten().index_select(0, scored)
        loss, nll_loss = smoothed_cross_entropy(logits, target, self.eps)
        if reduce:
            loss, nll_loss = loss.sum(), nll_loss.sum()

        gates, labels = extra[GATES], sample.get("gate_labels")
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "nll_loss": nll_loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
            **gate_sums(list(gates.values()), is_token, labels)._asdict(),
            "labelled_batches": int(labels is not None),
            "gate_loss": nll_loss.new_zeros(()),
        }
        if labels is not None:
            hinge = self.compute_hinge(gates, labels).flatten().index_select(0, scored)
            hinge_sum = hinge.sum()
            logging_output["gate_loss"] = hinge_sum.data
            if self.training:
                loss = loss + self.gate_lambda * (hinge_sum if reduce else hinge)
        logging_output["loss"] = loss.data
        if self.report_accuracy:
            logging_output.update(n_correct=logits.argmax(dim=-1).eq(target).sum().item(), total=target.numel())
        return loss, sample_size, logging_output

    def compute_hinge(self, gates: Dict[int, Tensor], labels: Tensor) -> Tensor:
        """The hinge at each position, (batch, target length), reduced over the regularized layers that ran.

        Raises:
            RuntimeError: :meth:`prepare_for` was not called.
        """
        if not self._layers:
            raise RuntimeError("prepare_for(model) chooses the regularized layers: call it before the first batch")
        regularized = [gate for layer, gate in gates.items() if layer in self._layers]
        if not regularized:
            return torch.zeros_like(labels, dtype=torch.float)
        hinges = gate_hinge(torch.stack(regularized), labels, self.gate_reduction)
        return hinges.mean(dim=0) if self.gate_layer_reduction == "mean" else hinges.sum(dim=0)

    @classmethod
    def reduce_metrics(cls, logging_outputs: List[Dict[str, Any]]) -> None:
        """Aggregate the logs of all batches and workers."""
        super().reduce_metrics(logging_outputs)

        def log_sums(keys: Iterable[str]) -> None:
            for key in keys:
                metrics.log_scalar_sum(f"_{key}", sum(log.get(key, 0) for log in logging_outputs))

        def log_figure(name: str, figure: Callable[[Mapping[str, Any]], float]) -> None:
            metrics.log_derived(name, lambda meters: round(figure(meters), 4))

        log_sums(GateSums._fields)
        log_figure("gate_mean", lambda meters: _logged_sums(meters).mean)
        log_figure("gate_var", lambda meters: _logged_sums(meters).variance)
        if utils.item(sum(log.get("labelled_batches", 0) for log in logging_outputs)):
            log_sums(("gate_loss", "ntokens"))
            # Per token, also under --sentence-avg, as nll_loss is.
            log_figure("gate_loss", lambda meters: float(meters["_gate_loss"].sum) / float(meters["_ntokens"].sum))
            log_figure("gate_agreement", lambda meters: _logged_sums(meters).agreement)
            log_figure("gate_mean_agreement", lambda meters: _logged_sums(meters).mean_agreement)


def _logged_sums(meters: Mapping[str, Any]) -> GateSums:
    """The sums over the gates of all batches that the meters have seen."""
    return GateSums(*(meters[f"_{key}"].sum for key in GateSums._fields))
