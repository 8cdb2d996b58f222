"""Statistics and a picture of context gates (Li et al. 2020, Table 4).

``ctxgates analyze gates data-bin/X --path checkpoint.pt --figure gates.png --json gates.json``

The gates are those of forced decoding: the reference is the decoder's input. A gate z is the weight of the source;
every component of the vector counts by itself, at every target position that is not padding, end of sentence included.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import torch
from torch import Tensor

from fairseq_ctxgates.analysis.inference import Inference, add_inference_options, quiet_logging
from fairseq_ctxgates.criterions.gate_regularized_cross_entropy import gate_hinge, gate_sums
from fairseq_ctxgates.data.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.errors import UserError

LABEL_NAMES = {SOURCE: "source", TARGET: "target", IGNORE: "–"}


@dataclass(frozen=True)
class GateSummary:
    """What is said of the gates of one layer, or of all.

    ``mean`` and ``variance`` are over all components; ``agreement`` is the share of components on their label's side of
    one half; ``hinge`` is the regularizer (equation 5), its mean over components and labelled positions. The last two
    are None without labels.
    """

    mean: float
    variance: float
    agreement: Optional[float]
    hinge: Optional[float]


class GateStatistics:
    """Sums over the gates of any number of batches, for each layer, and the summaries they give."""

    def __init__(self) -> None:
        self.sentences = 0
        self.tokens = 0
        self.labels = {SOURCE: 0, TARGET: 0}
        # Python's floats are of double precision, as sums over a whole corpus need.
        self._sums: Dict[int, Dict[str, float]] = {}

    def add(self, gates: Dict[int, Tensor], is_token: Tensor, labels: Optional[Tensor] = None) -> None:
        """Count a batch.

        Args:
            gates: z by the number of its layer, each (target length, batch, embed dim)
            is_token: (batch, target length), false at padding
            labels: (batch, target length): SOURCE, TARGET or IGNORE; None where there are no labels
        """
        self.sentences += is_token.size(0)
        self.tokens += int(is_token.sum())
        if labels is not None:
            for label in self.labels:
                self.labels[label] += int((labels[is_token] == label).sum())
        for layer, gate in gates.items():
            sums = gate_sums([gate], is_token, labels)
            if labels is not None:
                sums["hinge"] = gate_hinge(gate, labels)[is_token].sum()
            layer_sums = self._sums.setdefault(layer, defaultdict(float))
            for key, value in sums.items():
                layer_sums[key] += float(value)

    @property
    def labelled_tokens(self) -> int:
        """The target positions whose label is SOURCE or TARGET."""
        return sum(self.labels.values())

    @property
    def majority_share(self) -> Optional[float]:
        """The share of the commoner label: the agreement of gates that are always on its side. None without labels."""
        return max(self.labels.values()) / self.labelled_tokens if self.labelled_tokens else None

    @property
    def layers(self) -> List[int]:
        """The numbers of the layers, from 1 at the bottom."""
        return sorted(self._sums)

    def summary(self, layer: Optional[int] = None) -> GateSummary:
        """The summary of one layer; without a number that of all layers together, where every layer weighs the same."""
        chosen = [self._sums[number] for number in (self.layers if layer is None else [layer])]
        sums = {key: sum(layer_sums[key] for layer_sums in chosen) for key in chosen[0]}
        mean = sums["gate_sum"] / sums["gate_count"]
        variance = max(sums["gate_square_sum"] / sums["gate_count"] - mean**2, 0.0)
        if not self.labelled_tokens:
            return GateSummary(mean, variance, None, None)
        agreement = sums["gate_agreeing"] / sums["gate_labelled"]
        return GateSummary(mean, variance, agreement, sums["hinge"] / (self.labelled_tokens * len(chosen)))

    def as_dict(self) -> Dict[str, Any]:
        """Everything, for JSON."""
        return {
            "sentences": self.sentences,
            "target_tokens": self.tokens,
            "labels": {LABEL_NAMES[label]: number for label, number in self.labels.items()},
            "majority_share": self.majority_share,
            "layers": {str(layer): asdict(self.summary(layer)) for layer in self.layers},
            "all": asdict(self.summary()),
        }


@torch.no_grad()
def read_gates(inference: Inference, batch: Dict[str, Any]) -> Dict[int, Tensor]:
    """The gates of a batch by the number of their layer, each (target length, batch, embed dim).

    Raises:
        UserError: the model has no context gates.
    """
    if not getattr(inference.model, "gated_layers", 0):
        raise UserError(f"{inference.path} has no context gates: train with --arch rcg_transformer, or --context-gate")
    _, extra = inference.model(**batch["net_input"], return_gates=True)
    gates: Dict[int, Tensor] = extra["gates"]
    return gates


def gate_statistics(
    inference: Inference, split: str, max_tokens: Optional[int] = None, batch_size: Optional[int] = None
) -> GateStatistics:
    """The statistics of a model's gates over a split.

    Raises:
        UserError: the model has no context gates, or there is no such split.
    """
    statistics = GateStatistics()
    padding = inference.task.target_dictionary.pad()
    for batch in inference.batches(split, max_tokens, batch_size):
        statistics.add(read_gates(inference, batch), batch["target"].ne(padding), batch.get("gate_labels"))
    return statistics


@dataclass(frozen=True)
class SentenceGates:
    """The gates of one sentence, as they are drawn.

    ``means`` holds, for each layer from the bottom and each target token, the mean of z over its components: (layers,
    target length). ``labels`` has a name for each token, or is None.
    """

    source: str
    tokens: List[str]
    layers: List[int]
    means: Tensor
    labels: Optional[List[str]]


def sentence_gates(inference: Inference, split: str, number: int) -> SentenceGates:
    """The gates of a sentence of a split, by its number in the split, from 1.

    Raises:
        UserError: the split has no such sentence, or the model no context gates.
    """
    dataset = inference.load_split(split)
    if not 1 <= number <= len(dataset):
        raise UserError(f"--sentence {number}: split {split!r} has sentences 1 to {len(dataset)}")
    batch = inference.to_device(dataset.collater([dataset[number - 1]]))
    gates = read_gates(inference, batch)
    source_dictionary, dictionary = inference.task.source_dictionary, inference.task.target_dictionary
    labels = batch.get("gate_labels")
    return SentenceGates(
        source=source_dictionary.string(batch["net_input"]["src_tokens"][0]),
        tokens=[dictionary[token] for token in batch["target"][0].tolist()],
        layers=sorted(gates),
        means=torch.stack([gates[layer][:, 0].float().mean(dim=-1) for layer in sorted(gates)]).cpu(),
        labels=None if labels is None else [LABEL_NAMES[label] for label in labels[0].tolist()],
    )


def gate_figure(sentence: SentenceGates) -> Any:
    """A matplotlib figure: the heat map of a sentence's gates, a row for each layer, a column for each target token."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers, length = sentence.means.shape
    width = max(6.0, 0.55 * length + 2.5)
    figure = Figure(figsize=(width, 0.5 * layers + 2.6), dpi=150, constrained_layout=True)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(sentence.means.numpy(), cmap="RdBu", vmin=0, vmax=1, aspect="auto", origin="lower")
    for row in range(layers):
        for column in range(length):
            z = float(sentence.means[row, column])
            colour = "white" if abs(z - 0.5) > 0.3 else "black"
            axes.text(column, row, f"{z:.2f}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(range(length))
    axes.set_xticklabels(sentence.tokens, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(layers))
    axes.set_yticklabels([str(layer) for layer in sentence.layers])
    axes.set_xlabel("target token, given the reference before it")
    axes.set_ylabel("decoder layer")
    if sentence.labels is not None:
        top = axes.secondary_xaxis("top")
        top.set_xticks(range(length))
        top.set_xticklabels(sentence.labels, fontsize=7)
        top.set_xlabel("label z* (–: ignored)", fontsize=8)
    figure.colorbar(image, ax=axes, label="weight of the source\n(mean over components)")
    figure.suptitle(textwrap.fill(f"Context gates for: {sentence.source}", int(width * 11)), fontsize=10)
    return figure


def format_table(statistics: GateStatistics) -> str:
    """The statistics as a table of plain text, a row for each layer and one for all."""
    lines = [f"{'layer':>5}  {'mean':>6}  {'variance':>8}  {'agreement':>9}  {'hinge':>6}"]
    for layer in [*statistics.layers, None]:
        row = statistics.summary(layer)
        agreement = "—" if row.agreement is None else f"{row.agreement:.3f}"
        hinge = "—" if row.hinge is None else f"{row.hinge:.4f}"
        name = "all" if layer is None else str(layer)
        lines.append(f"{name:>5}  {row.mean:6.3f}  {row.variance:8.4f}  {agreement:>9}  {hinge:>6}")
    return "\n".join(lines)


def describe(statistics: GateStatistics) -> str:
    """What the statistics were measured on, in words."""
    text = f"{statistics.sentences} sentences, {statistics.tokens} target tokens"
    if statistics.majority_share is None:
        return f"{text}, no gate labels"
    source_share = statistics.labels[SOURCE] / statistics.labelled_tokens
    return (
        f"{text}, {statistics.labelled_tokens} of them labelled ({source_share:.1%} source; "
        f"majority share {statistics.majority_share:.3f})"
    )


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog="ctxgates analyze gates",
        description="Mean and variance of context gates over a data split, their agreement with the gate labels, and a "
        "heat map over one sentence.",
    )
    add_inference_options(parser)
    parser.add_argument("--figure", type=Path, metavar="PNG", help="draw the gates of one sentence to this file")
    parser.add_argument("--sentence", type=int, default=1, metavar="N", help="the sentence drawn, from 1 (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the statistics to this file")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Print the table; write the JSON file and the figure that are asked for."""
    args = get_parser().parse_args(argv)
    quiet_logging()
    inference = Inference.from_options(args, load_gate_labels=True)
    if args.figure:
        args.figure.parent.mkdir(parents=True, exist_ok=True)
        gate_figure(sentence_gates(inference, args.gen_subset, args.sentence)).savefig(args.figure, format="png")
    statistics = gate_statistics(inference, args.gen_subset, args.max_tokens, args.batch_size)
    print(f"context gates of {args.path} over {args.gen_subset} of {args.data}: {describe(statistics)}")
    print(format_table(statistics))
    if args.json:
        report = {"path": args.path, "data": args.data, "split": args.gen_subset, **statistics.as_dict()}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if args.figure:
        print(f"gates of sentence {args.sentence}: {args.figure}")
