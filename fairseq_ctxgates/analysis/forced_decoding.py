"""Errors of forced decoding, and how many of them choose the wrong context (Li et al. 2020, section 3.3 and Table 3).

``ctxgates analyze forced-decoding data-bin/X --path plain.pt gated.pt --figure errors.png --json errors.json``

The decoder's input is the reference, and ŷ_i is the arg-max over the vocabulary at position i.

* FER, the forced decoding error rate: the share of all target positions, end of sentence included, with ŷ_i ≠ y_i.
* CER, the context selection error rate: the share of the same positions with z*(ŷ_i) ≠ z*(y_i). Both labels (equation
  7) are for the same source sentence and the same preceding target words, and neither is *ignore*.
* CE/FE = CER/FER, the share of translation errors that are context selection errors.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.bootstrap import Estimate, add_bootstrap_options, bootstrap, ratio
from fairseq_ctxgates.analysis.figures import new_figure, panels
from fairseq_ctxgates.analysis.inference import (
    Inference,
    TranslationModel,
    add_inference_options,
    as_context_model,
    check_overrides,
    checkpoint_paths,
    run_without_attention,
)
from fairseq_ctxgates.analysis.options import add_names_option
from fairseq_ctxgates.analysis.report import Cell, Result, Table, add_report_options
from fairseq_ctxgates.analysis.systems import system_names
from fairseq_ctxgates.context_gates.gate_labels import IGNORE
from fairseq_ctxgates.context_gates.pmi.labelling import GateLabeller, load_labeller
from fairseq_ctxgates.context_gates.pmi.sentences import Sentences, starts
from fairseq_ctxgates.data.data_directory import first_data_dir
from fairseq_ctxgates.data.side_stream import Batch
from fairseq_ctxgates.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Columns of the counts that are summed over sentences.
TOKENS, ERRORS, CONTEXT_ERRORS = range(3)
# Name of a rate: the columns of its numerator and denominator.
RATES = {"FER": (ERRORS, TOKENS), "CER": (CONTEXT_ERRORS, TOKENS), "CE/FE": (CONTEXT_ERRORS, ERRORS)}


@torch.no_grad()
def predicted_words(model: TranslationModel, batch: Batch, padding: int) -> List[np.ndarray]:
    """The arg-max of forced decoding at each target token: an array (target length,) for each sentence of the batch."""
    is_token = batch["target"].ne(padding)
    if as_context_model(model) is not None and not has_adaptive_softmax(model):
        # Such a model can compute the output layer for the target tokens only.
        positions = is_token.flatten().nonzero().squeeze(1)
        words = run_without_attention(model, batch, output_positions=positions)[0].argmax(dim=-1)
    else:
        words = _scores(model, batch).argmax(dim=-1)[is_token]
    return [part.cpu().numpy() for part in words.split(is_token.sum(dim=1).tolist())]


def _scores(model: TranslationModel, batch: Batch) -> Tensor:
    """Scores with the same arg-max as the probabilities, (batch, target length, vocabulary)."""
    output = model(**batch["net_input"])
    if not has_adaptive_softmax(model):
        return output[0]
    return model.get_normalized_probs(output, log_probs=True)  # if given the target, it would leave out clusters


def has_adaptive_softmax(model: TranslationModel) -> bool:
    """Whether the model's decoder returns features, from which an adaptive softmax computes the probabilities."""
    return getattr(model.decoder, "adaptive_softmax", None) is not None


def count_errors(
    labeller: GateLabeller,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    predictions: Sequence[np.ndarray],
) -> np.ndarray:
    """The number of target positions, errors and context selection errors of each sentence.

    Args:
        sources: for each sentence, its token ids, (source length,)
        targets: for each sentence, the token ids of its reference, (target length,)
        predictions: for each sentence, the word predicted at each target token, (target length,), as returned by
            :func:`predicted_words`

    Returns:
        (sentences, 3) int64: TOKENS, ERRORS, CONTEXT_ERRORS
    """
    source, target = concatenate(sources), concatenate(targets)
    words = np.concatenate(predictions)
    labels, predicted = (labeller.label_sentences(source, target, chosen) for chosen in (target.ids, words))
    is_labelled = (labels != IGNORE) & (predicted != IGNORE)
    at_token = np.stack([np.ones(len(words), np.int64), words != target.ids, is_labelled & (labels != predicted)])
    return np.add.reduceat(at_token, target.start[:-1], axis=1).T


def concatenate(sentences: Sequence[np.ndarray]) -> Sentences:
    """The sentences, each (length,), in one array."""
    return Sentences(np.concatenate(sentences), starts(np.array([len(sentence) for sentence in sentences])))


def forced_decoding_errors(
    inference: Inference, split: str, max_tokens: Optional[int] = None, batch_size: Optional[int] = None
) -> np.ndarray:
    """The errors of a model over a split: a row of :func:`count_errors` for each sentence, zeros for a sentence that is
    longer than the model's positions.

    Raises:
        UserError: the split does not exist, or the data directory lacks the tables of ``ctxgates gate-labels``.
    """
    labeller = load_labeller(inference.data_dir, *inference.languages)
    padding = inference.task.target_dictionary.pad()
    rows: List[int] = []
    predictions: List[np.ndarray] = []
    for batch in inference.batches(split, max_tokens, batch_size):
        rows += batch["id"].tolist()
        predictions += predicted_words(inference.model, batch, padding)
    texts = [inference.split(split).load_language(language) for language in inference.languages]
    sources, targets = ([text[row].numpy() for row in rows] for text in texts)
    errors = np.zeros((len(texts[0]), 3), np.int64)
    if rows:
        errors[rows] = count_errors(labeller, sources, targets, predictions)
    return errors


@dataclass(frozen=True)
class Comparison:
    """The errors of several systems over the same sentences.

    Attributes:
        names: the names of the systems, the baseline first
        errors: for each system, (sentences, 3), as returned by :func:`forced_decoding_errors`
        resamples, seed: of the bootstrap
    """

    names: Sequence[str]
    errors: Sequence[np.ndarray]
    resamples: int
    seed: int

    @classmethod
    def of_common_sentences(
        cls, names: Sequence[str], errors: Sequence[np.ndarray], resamples: int, seed: int
    ) -> Comparison:
        """The comparison over the sentences that no system left out.

        Raises:
            UserError: there are no such sentences.
        """
        is_read = np.logical_and.reduce([counts[:, TOKENS] > 0 for counts in errors])
        if not is_read.any():
            raise UserError("no sentence is short enough for every model")
        return cls(names, [counts[is_read] for counts in errors], resamples, seed)

    def rate(self, system: int, name: str) -> Estimate:
        """FER, CER or CE/FE of a system, from 0 to 1."""
        return bootstrap(self.errors[system], lambda sums: ratio(sums, *RATES[name]), self.resamples, self.seed)

    def difference(self, system: int, name: str) -> Estimate:
        """The rate minus the baseline's, with the paired interval; undefined for the baseline itself."""
        if system == 0:
            return Estimate(None, None, None)
        both = np.concatenate([self.errors[system], self.errors[0]], axis=1)
        numerator, denominator = RATES[name]

        def rate_difference(sums: np.ndarray) -> np.ndarray:
            return ratio(sums, numerator, denominator) - ratio(sums, numerator + 3, denominator + 3)

        return bootstrap(both, rate_difference, self.resamples, self.seed)

    def as_dicts(self) -> List[Dict[str, Cell]]:
        """All values of each system, rates in percent."""
        rows = []
        for system, name in enumerate(self.names):
            row: Dict[str, Cell] = {"system": name}
            for key, total in zip(("errors", "context_errors"), self.errors[system].sum(axis=0)[1:].tolist()):
                row[key] = total
            for rate in RATES:
                row.update(self.rate(system, rate).as_percent().as_dict(rate))
                row.update(self.difference(system, rate).as_percent().as_dict(f"{rate}_difference"))
            rows.append(row)
        return rows


def tables(comparison: Comparison) -> List[Table]:
    """The rates of each system and, for several systems, the differences to the first, in percent."""
    rows, differences = [], []
    for system, name in enumerate(comparison.names):
        rows.append([name, *(comparison.rate(system, rate).as_percent().text(".1f") for rate in RATES)])
        if system:
            texts = (comparison.difference(system, rate).as_percent().text("+.2f") for rate in RATES)
            differences.append([name, *texts])
    found = [Table({"system": "", **{f"{rate} (%)": "" for rate in RATES}}, rows)]
    if differences:
        first = comparison.names[0]
        found.append(Table({f"minus {first}": "", **{f"{rate} (% points)": "" for rate in RATES}}, differences))
    return found


def error_figure(comparison: Comparison, title: str) -> Figure:
    """A panel for each rate, with a bar and its interval for each system."""
    figure = new_figure(3.2 * len(RATES), 3.6)
    systems = range(len(comparison.names))
    by_panel = {f"{name} (%)": [comparison.rate(system, name).as_percent() for system in systems] for name in RATES}
    panels(figure, comparison.names, by_panel, title)
    return figure


class ForcedDecodingAnalysis(Analysis):
    """Forced decoding error rate (FER), context selection error rate (CER) and CE/FE of any number of models, including
    fairseq's own, with paired bootstrap intervals. The first model is the baseline.
    """

    name = "forced-decoding"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The models, the split, the intervals and the files to write."""
        add_inference_options(parser, several=True)
        add_names_option(parser, "models", "--path")
        add_bootstrap_options(parser)
        add_report_options(parser, csv="the figures of each model", figure="the rates")

    def run(self, args: argparse.Namespace) -> Result:
        """Count the errors of every model."""
        paths = checkpoint_paths(args)
        names = system_names(paths, args.names)
        errors, languages = count_model_errors(paths, args)
        comparison = Comparison.of_common_sentences(names, errors, args.resamples, args.seed)
        sentences, tokens = len(comparison.errors[0]), int(comparison.errors[0][:, TOKENS].sum())
        scope = f"{languages}: {sentences} sentences, {tokens} target tokens"
        over = f"forced decoding over {args.gen_subset} of"
        left_out = len(errors[0]) - sentences
        note = f" ({left_out} sentences are too long for a model)" if left_out else ""
        rows = comparison.as_dicts()
        return Result(
            headline=f"{over} {args.data}, {scope}{note}",
            tables=tables(comparison),
            report={
                "data": args.data,
                "split": args.gen_subset,
                "languages": languages,
                "sentences": sentences,
                "target_tokens": tokens,
                "unit": "percent",
                "resamples": args.resamples,
                "seed": args.seed,
                "systems": [{"path": path, **row} for path, row in zip(paths, rows)],
            },
            csv=Table(dict.fromkeys(rows[0], ""), [list(row.values()) for row in rows]),
            figure=lambda: error_figure(comparison, f"{over} {first_data_dir(args.data).name}, {scope}"),
        )


def count_model_errors(paths: Sequence[str], args: argparse.Namespace) -> Tuple[List[np.ndarray], str]:
    """The errors of each model over the split, and the models' languages, such as ``de-en``.

    Raises:
        UserError: the models translate between different languages.
    """
    check_overrides(args, paths)
    errors, languages = [], ""
    for path in paths:
        inference = Inference.from_options(args, path)
        languages = languages or inference.direction
        inference.check_direction(paths[0], languages)
        errors.append(forced_decoding_errors(inference, args.gen_subset, args.max_tokens, args.batch_size))
    return errors, languages
