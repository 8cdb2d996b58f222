"""The relation mask of a sentence beside the encoder's attention (Li, Zhu et al. 2022, Figure 3).

``ctxgates analyze relations data-bin/X --path checkpoint.pt --sentence 3 --figure relations.png --json relations.json``

A model with factual relations encodes the source twice, by the same layers: as usual, and with every word seeing only
the words of its relations. The analysis shows the self-attention weights of one encoder layer in both encodings,
averaged over the heads: a row for each token, a column for each token that it attends to.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.figures import new_figure
from fairseq_ctxgates.analysis.inference import (
    Inference,
    add_loading_options,
    add_model_options,
    required_streams,
)
from fairseq_ctxgates.analysis.options import add_split_option
from fairseq_ctxgates.analysis.report import Cell, Result, Table, add_report_options
from fairseq_ctxgates.data.side_stream import Batch
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.stream import Relations

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


@dataclass(frozen=True)
class RelationAttention:
    """The relation mask and the attention of one sentence of L tokens. Row i of a matrix is what token i sees.

    Attributes:
        number: the number of the sentence in the split, from 1
        tokens: the source tokens, including end of sentence
        layer: the number of the encoder layer, from 1 at the bottom
        mask: M, (L, L), bool
        plain: the weights of attention without the mask, (L, L)
        masked: the weights under the mask, (L, L)
    """

    number: int
    tokens: List[str]
    layer: int
    mask: np.ndarray
    plain: np.ndarray
    masked: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        """The share of each token's attention without the mask that is on the tokens of the mask, (L,)."""
        share: np.ndarray = (self.plain * self.mask).sum(axis=1)
        return share

    def as_dict(self) -> Dict[str, object]:
        """All matrices, for JSON."""
        return {
            "sentence": self.number,
            "layer": self.layer,
            "tokens": self.tokens,
            "mask": self.mask.astype(int).tolist(),
            "attention": {"plain": self.plain.tolist(), "masked": self.masked.tolist()},
        }


def relation_attention(inference: Inference, split: str, number: int, layer: Optional[int]) -> RelationAttention:
    """The relation mask and the attention of a sentence of a split.

    Args:
        number: the number of the sentence, from 1
        layer: the number of the encoder layer, from 1 at the bottom; None for the top one

    Raises:
        UserError: the model reads no relations, there is no such sentence or layer, or the sentence is too long.
    """
    if Relations.name not in required_streams(inference.model):
        raise UserError(f"{inference.path} reads no relations: train with --arch fra_transformer, or --relation-fusion")
    layers = len(inference.model.encoder.layers)
    if layer is not None and not 1 <= layer <= layers:
        raise UserError(f"--layer {layer}: the encoder of {inference.path} has layers 1 to {layers}")
    inference.check_sentence(split, number)
    batch = inference.sentence(split, number)
    plain, masked = self_attention(inference.model, batch, layer or layers)
    dictionary = inference.task.source_dictionary
    return RelationAttention(
        number=number,
        tokens=[dictionary[token] for token in batch["net_input"]["src_tokens"][0].tolist()],
        layer=layer or layers,
        mask=batch["net_input"]["relation_mask"][0].cpu().numpy(),
        plain=plain[0].cpu().double().numpy(),
        masked=masked[0].cpu().double().numpy(),
    )


@torch.no_grad()
def self_attention(model: Any, batch: Batch, layer: int) -> Tuple[Tensor, Tensor]:
    """The self-attention weights of an encoder layer, averaged over the heads, in the ordinary encoding and in the
    encoding under the relation mask, each (batch, source length, source length).

    Args:
        model: a context Transformer that reads relations, possibly with other mechanisms
        layer: the number of the layer, from 1 at the bottom
    """
    net_input = batch["net_input"]
    streams = {name: net_input[name] for name in model.input_names if name in net_input}
    encoder_layer = model.encoder.layers[layer - 1]
    inputs: List[Tuple[Any, ...]] = []
    hook = encoder_layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments))
    try:
        model.encoder(net_input["src_tokens"], net_input["src_lengths"], **streams)
    finally:
        hook.remove()
    # fairseq's layer discards its attention weights. They are computed again from the layer's inputs: those of the
    # first call, for the source, and not of calls for further sentences.
    x, padding_mask, attention_mask = inputs[0]
    x = encoder_layer.self_attn_layer_norm(x) if encoder_layer.normalize_before else x
    _, weights = encoder_layer.self_attn(
        x, x, x, key_padding_mask=padding_mask, attn_mask=attention_mask, need_weights=True
    )
    plain, masked = weights.chunk(2)  # see ContextTransformerEncoder.run_layers
    return plain, masked


def relation_figure(sentence: RelationAttention) -> Figure:
    """Three matrices side by side, with tokens on both axes: the mask, the attention without it and under it. Each
    attention has its own colour scale, because a token that sees only itself has a weight of 1."""
    side = min(max(1.8, 0.17 * len(sentence.tokens)), 9.0)
    label = 0.08 * max(map(len, sentence.tokens))
    width = 3 * (side + label) + 2.2
    figure = new_figure(width, side + label + 1.0)
    panels = figure.subplots(1, 3)
    name = "relation mask (full, as without relations)" if sentence.mask.all() else "relation mask"
    draw_matrix(panels[0], sentence.mask, sentence.tokens, name)
    for axes, weights, name in (
        (panels[1], sentence.plain, f"attention, encoder layer {sentence.layer}"),
        (panels[2], sentence.masked, "the same under the mask"),
    ):
        image = draw_matrix(axes, weights, sentence.tokens, name)
        figure.colorbar(image, ax=axes, shrink=0.8, label="weight (mean over heads)")
    text = f"Sentence {sentence.number}: {' '.join(sentence.tokens[:-1])}"
    panels[0].set_ylabel("token")
    figure.suptitle(textwrap.fill(text, int(width * 11)), fontsize=10)
    return figure


def draw_matrix(axes: Axes, matrix: np.ndarray, tokens: Sequence[str], title: str) -> AxesImage:
    """Draw a matrix of numbers from 0 to 1, the darker the larger, with a token for each row and column."""
    image = axes.imshow(matrix, cmap="Blues", vmin=0)
    axes.set_xticks(range(len(tokens)))
    axes.set_xticklabels(tokens, rotation=90)
    axes.set_yticks(range(len(tokens)))
    axes.set_yticklabels(tokens)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("attends to")
    axes.set_title(title, fontsize=10)
    return image


def token_table(sentence: RelationAttention) -> Table:
    """A row for each token: how many tokens the mask lets it see, the share of its attention without the mask on these
    tokens, and the token that it attends to most in each encoding."""
    columns = {"token": "", "sees": "d", "attention on these": ".1%", "most": "", "most under the mask": ""}
    rows: List[List[Cell]] = [
        [
            token,
            int(sentence.mask[row].sum()),
            float(sentence.inside[row]),
            sentence.tokens[sentence.plain[row].argmax()],
            sentence.tokens[sentence.masked[row].argmax()],
        ]
        for row, token in enumerate(sentence.tokens)
    ]
    return Table(columns, rows)


def pair_table(sentence: RelationAttention) -> Table:
    """A row for each pair of tokens, positions from 1."""
    columns = {"position": "d", "token": "", "attends to position": "d", "attends to token": "", "mask": "d"}
    columns.update({"attention": ".4f", "attention under the mask": ".4f"})
    numbered = list(enumerate(sentence.tokens))
    rows: List[List[Cell]] = [
        [
            *(i + 1, token, j + 1, other, int(sentence.mask[i, j])),
            *(float(sentence.plain[i, j]), float(sentence.masked[i, j])),
        ]
        for i, token in numbered
        for j, other in numbered
    ]
    return Table(columns, rows)


class RelationAnalysis(Analysis):
    """The relation mask of a sentence beside the self-attention weights of an encoder layer, averaged over heads, in
    both encodings: the ordinary one, and the one under the mask.
    """

    name = "relations"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The model, the sentence, the layer and the files to write."""
        add_model_options(parser)
        add_split_option(parser, "the split that the sentence is in")
        parser.add_argument("--sentence", type=int, default=1, metavar="N", help="the sentence, from 1")
        help_text = "the encoder layer, from 1 at the bottom (default: the top one)"
        parser.add_argument("--layer", type=int, metavar="N", help=help_text)
        add_loading_options(parser)
        add_report_options(parser, csv="a row for each pair of tokens", figure="the three matrices")

    def run(self, args: argparse.Namespace) -> Result:
        """Encode the sentence in both ways."""
        inference = Inference.from_options(args)
        sentence = relation_attention(inference, args.gen_subset, args.sentence, args.layer)
        return Result(
            headline=f"relations and attention of {args.path}, encoder layer {sentence.layer}, in sentence "
            f"{args.sentence} of {args.gen_subset} of {args.data}",
            tables=[token_table(sentence)],
            report={"path": args.path, "data": args.data, "split": args.gen_subset, **sentence.as_dict()},
            csv=pair_table(sentence),
            figure=lambda: relation_figure(sentence),
        )
