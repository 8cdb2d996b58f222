"""Statistics and figures of context gates (Li et al. 2020, Table 4).

``ctxgates analyze gates data-bin/X --path checkpoint.pt --figure gates.png --histogram all.png --html gates.html``

The gates are those of forced decoding: the decoder's input is the reference. A gate z is the weight of the source. Each
component of the vector counts separately, at every target position except padding, end of sentence included. The paper
summarizes the mean and variance of "every dimension of the context gate vectors". The table has the mean and variance
of all components pooled, and the variance by dimension: that of a dimension over the tokens, averaged over dimensions.
The JSON file has the mean and variance of every dimension.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import astuple, dataclass
from functools import partial
from typing import TYPE_CHECKING, Dict, List, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.figures import label_tokens, legend_above, line_look, new_figure
from fairseq_ctxgates.analysis.gate_statistics import BINS, LABEL_NAMES, GateStatistics
from fairseq_ctxgates.analysis.inference import (
    Inference,
    add_inference_options,
    as_context_model,
    run_without_attention,
)
from fairseq_ctxgates.analysis.options import add_file_option
from fairseq_ctxgates.analysis.page import Page, PageSentence
from fairseq_ctxgates.analysis.report import FORMATS, Cell, Result, Table, add_page_option, add_report_options
from fairseq_ctxgates.context_gates.context_gate import GATES
from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE
from fairseq_ctxgates.data.side_stream import Batch
from fairseq_ctxgates.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_SENTENCES = 20


@torch.no_grad()
def read_gates(inference: Inference, batch: Batch) -> Dict[int, Tensor]:
    """For each layer number, the gates of a batch, (target length, batch, embed dim).

    Raises:
        UserError: the model has no context gates.
    """
    model = as_context_model(inference.model)
    if model is None or not model.layers_that_return(GATES):
        raise UserError(f"{inference.path} has no context gates: train with --arch rcg_transformer, or --context-gate")
    _, extra = run_without_attention(inference.model, batch, returns=(GATES,), features_only=True)
    gates: Dict[int, Tensor] = extra[GATES]
    return gates


def gate_statistics(
    inference: Inference, split: str, max_tokens: Optional[int] = None, batch_size: Optional[int] = None
) -> GateStatistics:
    """The statistics of a model's gates over a split.

    Raises:
        UserError: the model has no context gates, or the split does not exist.
    """
    statistics = GateStatistics()
    padding = inference.task.target_dictionary.pad()
    for batch in inference.batches(split, max_tokens, batch_size):
        statistics.add(read_gates(inference, batch), batch["target"].ne(padding), batch.get("gate_labels"))
    return statistics


@dataclass(frozen=True)
class SentenceGates:
    """The gates of one sentence, for the heat map.

    Attributes:
        source: the source sentence
        tokens: the target tokens
        layers: the numbers of the layers, from the bottom
        means: the mean of z over its components, (layers, target length)
        labels: the name of each target token's label; None without labels
    """

    source: str
    tokens: List[str]
    layers: List[int]
    means: Tensor
    labels: Optional[List[str]]


def sentence_gates(inference: Inference, split: str, number: int) -> SentenceGates:
    """The gates of the sentence with this number, from 1, in a split.

    Raises:
        UserError: there is no such sentence, or the model has no context gates.
    """
    batch = inference.sentence(split, number)
    gates = read_gates(inference, batch)
    source_dictionary, dictionary = inference.task.source_dictionary, inference.task.target_dictionary
    labels = batch.get("gate_labels")
    is_token = batch["target"][0].ne(dictionary.pad())  # excludes what a model reads before the sentence
    return SentenceGates(
        source=source_dictionary.string(batch["net_input"]["src_tokens"][0]),
        tokens=[dictionary[token] for token in batch["target"][0][is_token].tolist()],
        layers=sorted(gates),
        means=torch.stack([gates[layer][is_token, 0].float().mean(dim=-1) for layer in sorted(gates)]).cpu(),
        labels=None if labels is None else [LABEL_NAMES[label] for label in labels[0][is_token].tolist()],
    )


def gate_page(inference: Inference, split: str, first: int) -> Page:
    """The gates of each layer, with the labels, over some sentences of a split, from the one with this number on.
    Sentences that are too long are left out.

    Raises:
        UserError: there is no such sentence, all are too long, or the model has no context gates.
    """
    inference.sentence(split, first)
    numbers = [row + 1 for row in inference.rows_read(split) if row + 1 >= first][:PAGE_SENTENCES]
    if not numbers:
        raise UserError(f"--sentence {first}: from there on all are too long for {inference.path}, choose another")
    shown = []
    for number in numbers:
        gates = sentence_gates(inference, split, number)
        values = {f"layer {layer}": means.round(decimals=3).tolist() for layer, means in zip(gates.layers, gates.means)}
        labels = (
            None if gates.labels is None else [label if label != LABEL_NAMES[IGNORE] else "" for label in gates.labels]
        )
        shown.append(PageSentence(number, (), gates.source.split(), gates.tokens, values, labels=labels))
    return Page(
        title=f"Context gates: {split} of {inference.data_dir.name}",
        what="The weight of the source at each target word, given the reference before it: the mean of a layer's gate. "
        "The labels are z*.",
        series=list(shown[0].values),
        sentences=shown,
        middle=0.5,
        range=0.5,
        low="target",
        high="source",
        lists_top=False,
    )


def gate_figure(sentence: SentenceGates) -> Figure:
    """The heat map of a sentence's gates, a row for each layer and a column for each target token."""
    layers, length = sentence.means.shape
    width = max(6.0, 0.55 * length + 2.5)
    figure = new_figure(width, 0.5 * layers + 2.6)
    axes = figure.add_subplot()
    image = axes.imshow(sentence.means.numpy(), cmap="RdBu", vmin=0, vmax=1, aspect="auto", origin="lower")
    for row in range(layers):
        for column in range(length):
            z = float(sentence.means[row, column])
            text_colour = "white" if abs(z - 0.5) > 0.3 else "black"
            axes.text(column, row, f"{z:.2f}", ha="center", va="center", fontsize=7, color=text_colour)
    label_tokens(axes, sentence.tokens)
    axes.set_yticks(range(layers))
    axes.set_yticklabels([str(layer) for layer in sentence.layers])
    axes.set_xlabel("target token, given the reference before it")
    axes.set_ylabel("decoder layer")
    if sentence.labels is not None:
        _draw_gate_labels(axes, sentence.labels)
    figure.colorbar(image, ax=axes, label="weight of the source\n(mean over components)")
    figure.suptitle(textwrap.fill(f"Context gates for: {sentence.source}", int(width * 11)), fontsize=10)
    return figure


def _draw_gate_labels(axes: Axes, labels: List[str]) -> None:
    top = axes.secondary_xaxis("top")
    top.set_xticks(range(len(labels)))
    top.set_xticklabels(labels, fontsize=7)
    top.set_xlabel("label z* (–: ignored)", fontsize=8)


def histogram_figure(statistics: GateStatistics, title: str) -> Figure:
    """The histogram of the gates' components from 0 to 1, a line for each layer."""
    figure = new_figure(6.4, 3.6)
    axes = figure.add_subplot()
    edges = np.linspace(0, 1, BINS + 1)
    for index, layer in enumerate(statistics.layers):
        counts = statistics.histogram(layer)
        axes.stairs(100 * counts / counts.sum(), edges, label=f"layer {layer}", linewidth=1.5, **line_look(index))
    axes.axvline(0.5, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("z, the weight of the source")
    axes.set_ylabel(f"components (% in {1 / BINS:g})")
    legend_above(axes, columns=6)
    figure.suptitle(title, fontsize=10)
    return figure


def summary_table(statistics: GateStatistics) -> Table:
    """A row for each layer and one for all."""
    rows: List[List[Cell]] = []
    for layer in [*statistics.layers, None]:
        summary = statistics.summary(layer)
        rows.append(["all" if layer is None else str(layer), *astuple(summary)])
    columns = {
        "layer": "",
        "mean": ".3f",
        "variance": ".4f",
        "variance by dimension": ".4f",
        "agreement": ".3f",
        "agreement of means": ".3f",
        "hinge": ".4f",
        "hinge of means": ".4f",
    }
    return Table(columns, rows)


def describe(statistics: GateStatistics) -> str:
    """The number of sentences, tokens and labels that the statistics are computed from."""
    text = f"{statistics.sentences} sentences, {statistics.tokens} target tokens"
    if statistics.majority_share is None:
        return f"{text}, none labelled (ctxgates gate-labels makes labels, --task context_translation loads them)"
    source_share = statistics.labels[SOURCE] / statistics.labelled_tokens
    return (
        f"{text}, {statistics.labelled_tokens} of them labelled ({source_share:.1%} source; "
        f"majority share {statistics.majority_share:.3f})"
    )


class GateAnalysis(Analysis):
    """Mean and variance of context gates over a data split, their agreement with the gate labels, their histogram, and
    a heat map over one sentence.
    """

    name = "gates"
    output_options = (*Analysis.output_options, "histogram", "html")
    figures = ("figure", "histogram")
    figure_options = ("sentence",)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The model, the split, the sentence to draw and the files to write."""
        add_inference_options(parser)
        help_text = f"the sentence to draw, and the first of the page's {PAGE_SENTENCES} sentences, from 1"
        parser.add_argument("--sentence", type=int, default=1, metavar="N", help=help_text)
        add_file_option(
            parser, "--histogram", f"draw the histogram of all gates to this file ({FORMATS})", metavar="FILE"
        )
        add_report_options(parser, csv="the table", figure="the gates of one sentence")
        add_page_option(parser, f"the gates of {PAGE_SENTENCES} sentences")

    def run(self, args: argparse.Namespace) -> Result:
        """Read the gates of the split, after those of the sentence to draw."""
        inference = Inference.from_options(args, load_gate_labels=True)
        drawn = None
        if args.figure:
            inference.check_sentence(args.gen_subset, args.sentence)
            drawn = sentence_gates(inference, args.gen_subset, args.sentence)
        page = gate_page(inference, args.gen_subset, args.sentence) if args.html else None
        statistics = gate_statistics(inference, args.gen_subset, args.max_tokens, args.batch_size)
        if not statistics.sentences:
            raise UserError(f"no sentence of {args.gen_subset} of {args.data} is short enough for {args.path}")
        table = summary_table(statistics)
        over = f"context gates over {args.gen_subset} of {inference.data_dir.name}"
        return Result(
            headline=f"context gates of {args.path} over {args.gen_subset} of {args.data}: {describe(statistics)}",
            tables=[table],
            report={"path": args.path, "data": args.data, "split": args.gen_subset, **statistics.as_dict()},
            csv=table,
            figure=partial(gate_figure, drawn) if drawn else None,
            page=page,
            more_figures={
                "histogram": lambda: histogram_figure(statistics, f"{over}: {statistics.tokens} target tokens")
            },
        )
