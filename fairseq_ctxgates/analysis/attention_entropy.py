"""How attention spreads over the preceding sentence (Kuang and Xiong 2018, Figures 3 and 4).

``ctxgates analyze attention-entropy data-bin/X --path checkpoint.pt --figure entropy.png --csv entropy.csv``

For each target word of forced decoding the entropy of the attention over the preceding sentence (their equation 12),

    H = - Σ_j α_j log2 α_j   bits,

which is log2 n for even attention over the n tokens of the preceding sentence. α is the mean over the heads. NULL
sentences, which precede the first sentence of a document, are counted separately from ordinary sentences. The paper's
NULL sentence of three tokens has an entropy of up to 1.58 = log2 3, so the paper's logarithm has base 2.

For a model that reads several preceding sentences, two more values are given for each distance d: the share s_d of the
attention on that sentence, and the entropy H_d of the attention within it, that is, of α_j / s_d. For each target word,
H is the entropy of the shares plus Σ_d s_d H_d. Over words, sentences and layers, H_d is averaged with the weights s_d,
so that the means add up as well.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.figures import label_tokens, line_look, new_figure, token_width
from fairseq_ctxgates.analysis.inference import Inference, add_inference_options
from fairseq_ctxgates.analysis.preceding_context import has_inter_sentence_gate, inter_sentence, read_attention
from fairseq_ctxgates.analysis.report import Cell, Result, Table, add_report_options
from fairseq_ctxgates.data.side_stream import Batch
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import EncoderInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("NULL", "ordinary")


def attention_entropy(attention: Tensor) -> Tensor:
    """H in bits, (batch, target length), of attention weights (heads, batch, target length, preceding length)."""
    return entropy(attention.float().mean(dim=0))


def entropy(weights: Tensor) -> Tensor:
    """The entropy of each distribution over the last dimension, in bits."""
    return torch.special.entr(weights).sum(dim=-1) / np.log(2)


@dataclass(frozen=True)
class SentenceEntropy:
    """The entropies over the target tokens of one sentence.

    Attributes:
        number: the number of the sentence in the split, from 1
        preceding: the words of the preceding sentence; None if it is NULL
        preceding_tokens: n, the number of its tokens
        tokens: the target tokens, including end of sentence
        layers: the numbers of the layers that attend to the preceding sentence
        bits: H, (layers, target length)
        shares: the share of the attention on each preceding sentence, the nearest first, (layers, N)
        bits_within: H_d for each preceding sentence, (layers, N); NaN where there is no such sentence
    """

    number: int
    preceding: Optional[str]
    preceding_tokens: int
    tokens: List[str]
    layers: List[int]
    bits: np.ndarray
    shares: np.ndarray
    bits_within: np.ndarray

    @property
    def kind(self) -> str:
        """NULL or ordinary."""
        return KINDS[0] if self.preceding is None else KINDS[1]

    @property
    def even_bits(self) -> float:
        """log2 n, the entropy of even attention."""
        return float(np.log2(self.preceding_tokens))


@dataclass(frozen=True)
class EntropySummary:
    """Statistics of the entropy after one kind of preceding sentence.

    Attributes:
        kind: NULL or ordinary
        layer: the number of the layer; None for all layers together, with equal weights
        sentences, target_tokens: the number of sentences and of target tokens
        mean_bits, standard_deviation: over the target tokens; None if there are no sentences
        share_of_even: the mean of H / log2 n, over the tokens with n > 1; None if there are none
        shares: the mean share of the attention on each preceding sentence over the target tokens, the nearest first
        bits_within: the mean of H_d, weighted by s_d, for each preceding sentence; None where all weights are 0
    """

    kind: str
    layer: Optional[int]
    sentences: int
    target_tokens: int
    mean_bits: Optional[float] = None
    standard_deviation: Optional[float] = None
    share_of_even: Optional[float] = None
    shares: Tuple[float, ...] = ()
    bits_within: Tuple[Optional[float], ...] = ()


def summarize(sentences: Sequence[SentenceEntropy]) -> List[EntropySummary]:
    """The summaries for both kinds of preceding sentence: one for each layer and, for several layers, one for all."""
    summaries = []
    for kind in KINDS:
        chosen = [sentence for sentence in sentences if sentence.kind == kind]
        if not chosen:
            summaries.append(EntropySummary(kind, None, 0, 0))
            continue
        bits = np.concatenate([sentence.bits for sentence in chosen], axis=1)
        even = np.concatenate([np.full(len(sentence.tokens), sentence.even_bits) for sentence in chosen])
        layers = chosen[0].layers
        parts: List[Tuple[Optional[int], Sequence[int]]] = [(layer, [row]) for row, layer in enumerate(layers)]
        is_spread = even > 0  # not over a single token
        for layer, rows in [*parts, (None, range(len(layers)))] if len(layers) > 1 else parts:
            values = bits[rows]
            weights = np.array([len(sentence.tokens) * sentence.shares[rows] for sentence in chosen])
            within = weights * np.ma.masked_invalid([sentence.bits_within[rows] for sentence in chosen])
            summaries.append(
                EntropySummary(
                    kind=kind,
                    layer=layer,
                    sentences=len(chosen),
                    target_tokens=len(even),
                    mean_bits=float(values.mean()),
                    standard_deviation=float(values.std()),
                    share_of_even=_mean_or_none(values[:, is_spread] / even[is_spread]),
                    shares=tuple((weights.sum(axis=(0, 1)) / values.size).tolist()),
                    bits_within=tuple((within.sum(axis=(0, 1)) / weights.sum(axis=(0, 1))).tolist()),
                )
            )
    return summaries


def _mean_or_none(values: np.ndarray) -> Optional[float]:
    return float(values.mean()) if values.size else None


def check_model(inference: Inference) -> None:
    """Raise UserError unless the model attends to preceding sentences."""
    if not has_inter_sentence_gate(inference.model):
        raise UserError(
            f"{inference.path} has no inter-sentence gate: train with --arch isg_transformer, or --inter-sentence-gate"
        )
    if inter_sentence(inference).is_random:
        raise UserError(f"{inference.path}: under the ablation 'random' nothing attends to the preceding sentence")


def attention_by_distance(
    attention: Tensor, distances: Tensor, target_mask: Tensor, context_size: int
) -> Tuple[Tensor, Tensor]:
    """The attention over the sentence at each distance, averaged over target tokens.

    Args:
        attention: (heads, batch, target length, preceding length)
        distances: (batch, preceding length), from 1
        target_mask: (batch, target length), true at tokens
        context_size: the number of preceding sentences

    Returns:
        s_d, (batch, context size), and H_d in bits, averaged with the weights s_d, (batch, context size); H_d is NaN
        if there is no such sentence or no attention to it
    """
    weights = attention.float().mean(dim=0)
    tokens = target_mask.sum(dim=1)
    shares, bits = [], []
    for distance in range(1, context_size + 1):
        is_there = distances.eq(distance)
        on_sentence = weights * is_there.unsqueeze(1)
        share = on_sentence.sum(dim=-1)
        within = entropy(on_sentence / share.clamp(min=torch.finfo(share.dtype).tiny).unsqueeze(-1))
        shares.append((share * target_mask).sum(dim=1) / tokens)
        bits.append((within * share * target_mask).sum(dim=1) / (share * target_mask).sum(dim=1))
    return torch.stack(shares, dim=1), torch.stack(bits, dim=1)


def sentence_entropies(inference: Inference, batch: Batch) -> Iterator[SentenceEntropy]:
    """The entropies of each sentence of a batch."""
    source_dictionary, target_dictionary = inference.task.source_dictionary, inference.task.target_dictionary
    attention = read_attention(inference, batch)
    layers = sorted(attention)
    bits = torch.stack([attention_entropy(attention[layer]) for layer in layers]).cpu().double().numpy()
    given = EncoderInput(batch["net_input"]["src_tokens"], batch["net_input"], source_dictionary)
    mechanism = inter_sentence(inference)
    read = mechanism.sentences(given)["preceding"]
    distances = torch.ones_like(read.tokens) if read.distances is None else read.distances
    is_token = batch["target"].ne(target_dictionary.pad())
    by_distance = [
        attention_by_distance(attention[layer], distances, is_token, mechanism.context_size) for layer in layers
    ]
    shares, bits_within = (torch.stack(by_layer).cpu().double().numpy() for by_layer in zip(*by_distance))
    for index, (row, target, preceding) in enumerate(zip(batch["id"].tolist(), batch["target"], read.tokens)):
        is_sentence_token = is_token[index]
        preceding = preceding[~read.padding_mask(source_dictionary.pad())[index]]
        yield SentenceEntropy(
            number=row + 1,
            preceding=source_dictionary.string(preceding) if (preceding != source_dictionary.eos()).any() else None,
            preceding_tokens=len(preceding),
            tokens=[target_dictionary[token] for token in target[is_sentence_token].tolist()],
            layers=layers,
            bits=bits[:, index, is_sentence_token.cpu().numpy()],
            shares=shares[:, index],
            bits_within=bits_within[:, index],
        )


def drawn_sentences(sentences: Sequence[SentenceEntropy], numbers: Optional[Sequence[int]]) -> List[SentenceEntropy]:
    """The sentences with these numbers; by default the first after NULL and the first after an ordinary sentence."""
    if numbers is None:
        firsts = (next((sentence for sentence in sentences if sentence.kind == kind), None) for kind in KINDS)
        return [sentence for sentence in firsts if sentence is not None]
    by_number = {sentence.number: sentence for sentence in sentences}
    return [by_number[number] for number in numbers]


def entropy_figure(sentences: Sequence[SentenceEntropy]) -> Figure:
    """For each sentence, curves of H over its target words: one for each layer, and one for the mean of the layers."""
    width = token_width(max(len(sentence.tokens) for sentence in sentences))
    figure = new_figure(width, 3.4 * len(sentences))
    for axes, sentence in zip(figure.subplots(len(sentences), 1, squeeze=False)[:, 0], sentences):
        _draw_curves(axes, sentence)
        before = "NULL" if sentence.preceding is None else f"“{sentence.preceding}”"
        title = f"Sentence {sentence.number}, after {before} (n = {sentence.preceding_tokens})"
        axes.set_title(textwrap.fill(title, int(width * 10)), fontsize=10)
    axes.set_xlabel("target token, given the reference before it")
    return figure


def _draw_curves(axes: Axes, sentence: SentenceEntropy) -> None:
    for row, layer in enumerate(sentence.layers):
        axes.plot(sentence.bits[row], marker=".", linewidth=1, label=f"layer {layer}", **line_look(row))
    if len(sentence.layers) > 1:
        axes.plot(sentence.bits.mean(axis=0), linewidth=2.5, color="black", label="mean of the layers")
    axes.axhline(sentence.even_bits, linestyle="--", color="grey", label="even: log2 n")
    label_tokens(axes, sentence.tokens)
    axes.set_xlim(-0.6, len(sentence.tokens) - 0.4)
    axes.set_ylim(0, 1.12 * sentence.even_bits)
    axes.set_ylabel("entropy (bits)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=9)


def summary_table(summaries: Sequence[EntropySummary]) -> Table:
    """A row for each summary."""
    columns = {
        "preceding sentence": "",
        "layer": "d",
        "sentences": ",d",
        "target tokens": ",d",
        "entropy (bits)": ".3f",
        "st. dev.": ".3f",
        "of log2 n": ".1%",
    }
    rows: List[List[Cell]] = []
    for summary in summaries:
        values = {**asdict(summary), "layer": "all" if summary.layer is None else summary.layer}
        rows.append([value for name, value in values.items() if name not in ("shares", "bits_within")])
    return Table(columns, rows)


def distance_tables(summaries: Sequence[EntropySummary]) -> List[Table]:
    """For a model that reads several preceding sentences, a table of the share of the attention on the sentence at each
    distance, and of the entropy within it. It has a row for each summary of sentences that have a preceding one."""
    chosen = [summary for summary in summaries if summary.kind == KINDS[1] and len(summary.shares) > 1]
    if not chosen:
        return []
    columns = {"layer": "d"}
    for distance in range(1, 1 + len(chosen[0].shares)):
        columns.update({f"attention at distance {distance}": ".1%", f"entropy in {distance} (bits)": ".3f"})
    rows: List[List[Cell]] = [
        ["all" if summary.layer is None else summary.layer, *chain(*zip(summary.shares, summary.bits_within))]
        for summary in chosen
    ]
    return [Table(columns, rows)]


def token_table(sentences: Sequence[SentenceEntropy]) -> Table:
    """A row for each target token."""
    columns = {"sentence": "d", "preceding sentence": "", "n": "d", "position": "d", "token": ""}
    columns.update({f"entropy of layer {layer} (bits)": ".4f" for layer in sentences[0].layers})
    return Table(
        columns,
        [
            [sentence.number, sentence.kind, sentence.preceding_tokens, position, token, *map(float, bits)]
            for sentence in sentences
            for position, (token, bits) in enumerate(zip(sentence.tokens, sentence.bits.T), start=1)
        ],
    )


class AttentionEntropyAnalysis(Analysis):
    """Entropy, in bits, of the attention over the preceding sentence for each target word, separately for NULL and
    ordinary preceding sentences.
    """

    name = "attention-entropy"
    figure_options = ("sentence",)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The model, the split, the files to write and the sentences to draw."""
        add_inference_options(parser)
        add_report_options(parser, csv="the entropy of each target token", figure="the curves of some sentences")
        parser.add_argument(
            "--sentence",
            type=int,
            action="extend",
            nargs="+",
            metavar="N",
            help="the sentences to draw, from 1 (default: the first after NULL and the first after an ordinary "
            "sentence)",
        )

    def run(self, args: argparse.Namespace) -> Result:
        """Measure the entropy of every target token of the split."""
        inference = Inference.from_options(args)
        check_model(inference)
        for number in args.sentence or []:  # an error before the whole split is read
            inference.check_sentence(args.gen_subset, number)
        sentences = sorted(
            (
                sentence
                for batch in inference.batches(args.gen_subset, args.max_tokens, args.batch_size)
                for sentence in sentence_entropies(inference, batch)
            ),
            key=lambda sentence: sentence.number,
        )
        if not sentences:
            raise UserError(f"every sentence of {args.gen_subset} of {args.data} is too long for {args.path}")
        drawn = drawn_sentences(sentences, args.sentence) if args.figure else []
        summaries = summarize(sentences)
        return Result(
            headline=f"attention of {args.path} over the preceding sentences of {args.gen_subset} of {args.data}",
            tables=[summary_table(summaries), *distance_tables(summaries)],
            report={
                "path": args.path,
                "data": args.data,
                "split": args.gen_subset,
                "unit": "bits",
                "summary": [asdict(summary) for summary in summaries],
            },
            csv=token_table(sentences),
            figure=partial(entropy_figure, drawn) if drawn else None,
        )
