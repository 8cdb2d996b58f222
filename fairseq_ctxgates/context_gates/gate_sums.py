"""Sums over context gates, and the mean, the variance and the agreement with the labels that are computed from them (Li
et al. 2020, Table 4)."""

from typing import List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from fairseq_ctxgates.context_gates.gate_labels import gate_signs

Number = Union[float, Tensor]  # a tensor holds one number


class GateSums(NamedTuple):
    """Sums over the gates of some layers at the positions that hold a token. A component z of a gate is on its label's
    side if it is above one half for SOURCE, below for TARGET. Without arguments, nothing was counted.

    Attributes:
        gate_sum, gate_square_sum: the sums of z and of its square over all components
        gate_count: the number of components
        gate_agreeing: the number of components on their label's side
        gate_labelled: the number of components that have a label
        gate_mean_agreeing: the number of gates whose mean over the components is on the label's side
        gate_mean_labelled: the number of gates that have a label
    """

    gate_sum: Number = 0.0
    gate_square_sum: Number = 0.0
    gate_count: Number = 0.0
    gate_agreeing: Number = 0.0
    gate_labelled: Number = 0.0
    gate_mean_agreeing: Number = 0.0
    gate_mean_labelled: Number = 0.0

    @property
    def mean(self) -> float:
        """The mean of all components."""
        return _ratio(self.gate_sum, self.gate_count)

    @property
    def variance(self) -> float:
        """The variance of all components. Rounding must not make it negative."""
        return max(_ratio(self.gate_square_sum, self.gate_count) - self.mean**2, 0.0)

    @property
    def agreement(self) -> float:
        """The share of components on their label's side, among those that have a label."""
        return _ratio(self.gate_agreeing, self.gate_labelled)

    @property
    def mean_agreement(self) -> float:
        """The share of gates whose mean over the components is on the label's side, among those that have a label."""
        return _ratio(self.gate_mean_agreeing, self.gate_mean_labelled)


def _ratio(total: Number, count: Number) -> float:
    """0 if nothing was counted."""
    return float(total) / max(float(count), 1.0)


def gate_sums(gates: List[Tensor], is_token: Tensor, labels: Optional[Tensor] = None) -> GateSums:
    """The sums over the gates of a batch, as tensors.

    Positions are masked rather than selected, because a selection would make the host wait for the device.

    Args:
        gates: z of some layers, each (target length, batch, embed dim)
        is_token: (batch, target length), false at padding
        labels: (batch, target length), IGNORE at padding; None: the sums that depend on labels are 0
    """
    layers = len(gates)
    if not gates:  # LayerDrop dropped every layer
        gates = [torch.empty(*is_token.t().shape, 0, device=is_token.device)]
    z = torch.stack([gate.detach() for gate in gates]).float()
    dim = z.size(-1)
    total, square_total = _sum_and_square_sum(z * is_token.t().unsqueeze(-1))
    # Tensors without labels, too: fairseq adds up the logs of several processes, some of which may have labels.
    signs = z.new_zeros(is_token.t().shape) if labels is None else gate_signs(labels).t()
    labelled = signs.abs().sum()
    mean_agreeing = (signs * (z.mean(dim=-1) - 0.5) < 0).sum()
    agreeing = (z.sub_(0.5).mul_(signs.unsqueeze(-1)) < 0).sum()  # in place: z is as large as all gates
    return GateSums(
        gate_sum=total,
        gate_square_sum=square_total,
        gate_count=is_token.sum() * (layers * dim),
        gate_agreeing=agreeing,
        gate_labelled=labelled * (layers * dim),
        gate_mean_agreeing=mean_agreeing,
        gate_mean_labelled=labelled * layers,
    )


def _sum_and_square_sum(values: Tensor) -> Tuple[Tensor, Tensor]:
    """The sums of the values and of their squares; the values are lost."""
    return values.sum(), values.square_().sum()
