"""Statistics of context gates over a corpus (Li et al. 2020, Table 4)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Dict, Iterable, List, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.context_gates.gate_regularized_cross_entropy import gate_hinge
from fairseq_ctxgates.context_gates.gate_sums import GateSums, gate_sums

BINS = 50  # of the histogram, from 0 to 1
LABEL_NAMES = {SOURCE: "source", TARGET: "target", IGNORE: "–"}


@dataclass(frozen=True)
class GateSummary:
    """Statistics of the gates of one layer, or of all layers.

    Attributes:
        mean, variance: over all components
        dimension_variance: the variance of a dimension over the tokens, averaged over the dimensions
        agreement: the share of components that agree with their label: above 1/2 for source, below 1/2 for target; None
            without labels
        mean_agreement: the share of gates whose mean over the components agrees with their label; None without labels
        hinge: the regularizer (equation 5) of a component, averaged over components and labelled positions; None
            without labels
        mean_hinge: the regularizer of a gate's mean over its components, averaged over labelled positions; None without
            labels
    """

    mean: float
    variance: float
    dimension_variance: float
    agreement: Optional[float] = None
    mean_agreement: Optional[float] = None
    hinge: Optional[float] = None
    mean_hinge: Optional[float] = None


class _LayerSums:
    """Sums over the gates of a layer. Those of the hinges are over the labelled positions, those of single dimensions
    over the tokens."""

    def __init__(self) -> None:
        self.gates = GateSums()
        self.hinge = 0.0
        self.mean_hinge = 0.0
        self.tokens = 0
        self.dimensions: np.ndarray = np.zeros(())
        self.dimension_squares: np.ndarray = np.zeros(())
        self.histogram = np.zeros(BINS, dtype=np.int64)

    def add(self, gate: Tensor, is_token: Tensor, labels: Optional[Tensor]) -> None:
        """Count the gates of a batch, (target length, batch, embed dim); see :meth:`GateStatistics.add`."""
        self.gates = _total([self.gates, gate_sums([gate], is_token, labels)])
        if labels is not None:
            self.hinge += float(gate_hinge(gate, labels, "mean")[is_token].sum())
            self.mean_hinge += float(gate_hinge(gate, labels, "hinge-of-mean")[is_token].sum())
        z = gate.transpose(0, 1)[is_token].float()
        self.tokens += len(z)
        self.dimensions = self.dimensions + z.double().sum(dim=0).cpu().numpy()
        self.dimension_squares = self.dimension_squares + z.double().square().sum(dim=0).cpu().numpy()
        self.histogram += torch.histc(z, bins=BINS, min=0, max=1).cpu().numpy().astype(np.int64)

    @property
    def dimension_means(self) -> np.ndarray:
        """(embed dim,)"""
        means: np.ndarray = self.dimensions / self.tokens
        return means

    @property
    def dimension_variances(self) -> np.ndarray:
        """(embed dim,)"""
        variances: np.ndarray = np.maximum(self.dimension_squares / self.tokens - self.dimension_means**2, 0.0)
        return variances


class GateStatistics:
    """Sums over the gates of any number of batches for each layer, and the summaries computed from them."""

    def __init__(self) -> None:
        self.sentences = 0
        self.tokens = 0
        self.labels = {SOURCE: 0, TARGET: 0}
        self._layers: Dict[int, _LayerSums] = defaultdict(_LayerSums)

    def add(self, gates: Dict[int, Tensor], is_token: Tensor, labels: Optional[Tensor] = None) -> None:
        """Count a batch.

        Args:
            gates: for each layer number, z, (target length, batch, embed dim)
            is_token: (batch, target length), false at padding
            labels: (batch, target length): SOURCE, TARGET or IGNORE; None without labels
        """
        self.sentences += is_token.size(0)
        self.tokens += int(is_token.sum())
        if labels is not None:
            for label in self.labels:
                self.labels[label] += int((labels[is_token] == label).sum())
        for layer, gate in gates.items():
            self._layers[layer].add(gate, is_token, labels)

    @property
    def labelled_tokens(self) -> int:
        """The number of target positions whose label is SOURCE or TARGET."""
        return sum(self.labels.values())

    @property
    def majority_share(self) -> Optional[float]:
        """The share of the more frequent label, which is the agreement of gates that always choose this label; None
        without labels."""
        return max(self.labels.values()) / self.labelled_tokens if self.labelled_tokens else None

    @property
    def layers(self) -> List[int]:
        """The numbers of the layers, from 1 at the bottom."""
        return sorted(self._layers)

    def summary(self, layer: Optional[int] = None) -> GateSummary:
        """The summary of one layer, or of all layers together with equal weights."""
        chosen = [self._layers[number] for number in (self.layers if layer is None else [layer])]
        sums = _total(layer_sums.gates for layer_sums in chosen)
        dimension_variance = float(np.mean([layer_sums.dimension_variances for layer_sums in chosen]))
        if not self.labelled_tokens:
            return GateSummary(sums.mean, sums.variance, dimension_variance)
        labelled_positions = self.labelled_tokens * len(chosen)
        return GateSummary(
            sums.mean,
            sums.variance,
            dimension_variance,
            agreement=sums.agreement,
            mean_agreement=sums.mean_agreement,
            hinge=sum(layer_sums.hinge for layer_sums in chosen) / labelled_positions,
            mean_hinge=sum(layer_sums.mean_hinge for layer_sums in chosen) / labelled_positions,
        )

    def dimensions(self, layer: int) -> Dict[str, List[float]]:
        """The mean and the variance over the tokens of each dimension of a layer's gates."""
        sums = self._layers[layer]
        return {"mean": sums.dimension_means.tolist(), "variance": sums.dimension_variances.tolist()}

    def histogram(self, layer: int) -> np.ndarray:
        """The number of components of a layer's gates in each of ``BINS`` equal parts of 0 to 1, (bins,)."""
        return self._layers[layer].histogram

    def as_dict(self) -> Dict[str, object]:
        """All statistics, for JSON."""
        return {
            "sentences": self.sentences,
            "target_tokens": self.tokens,
            "labels": {LABEL_NAMES[label]: count for label, count in self.labels.items()},
            "majority_share": self.majority_share,
            "layers": {str(layer): asdict(self.summary(layer)) for layer in self.layers},
            "all": asdict(self.summary()),
            "dimensions": {str(layer): self.dimensions(layer) for layer in self.layers},
            "histogram": {str(layer): self.histogram(layer).tolist() for layer in self.layers},
        }


def _total(sums: Iterable[GateSums]) -> GateSums:
    """The sums over several batches or layers, in the double precision of Python's floats, which a corpus needs."""
    return GateSums(*(sum(map(float, values)) for values in zip(*sums)))
