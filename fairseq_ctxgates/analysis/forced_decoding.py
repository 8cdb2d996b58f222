"""Errors of forced decoding, and how many of them choose the wrong context (Li et al. 2020, section 3.3 and Table 3).

``ctxgates analyze forced-decoding data-bin/X --path plain.pt gated.pt --figure errors.png --json errors.json``

The reference is the decoder's input, and ŷ_i, the model's word for position i, the arg-max over the vocabulary.

* FER, the forced decoding error rate: the share of all target positions, end of sentence included, where ŷ_i ≠ y_i.
* CER, the context selection error rate: the share of the same positions where z*(ŷ_i) ≠ z*(y_i), both labels (equation
  7) after the same source sentence and the same target words before, and neither of them *ignore*.
* CE/FE = CER/FER, the share of translation errors that are context selection errors.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch
from torch import Tensor

from fairseq_ctxgates.analysis.bootstrap import Estimate, add_bootstrap_options, bootstrap
from fairseq_ctxgates.analysis.figures import new_figure, panels
from fairseq_ctxgates.analysis.inference import Inference, add_inference_options, checkpoint_paths, quiet_logging
from fairseq_ctxgates.analysis.report import Table, add_report_options, check_outputs, write_report
from fairseq_ctxgates.analysis.systems import system_names
from fairseq_ctxgates.context_gates.gate_labels import IGNORE
from fairseq_ctxgates.context_gates.pmi.labelling import GateLabeller, load_labeller
from fairseq_ctxgates.context_gates.pmi.sentences import Sentences, starts
from fairseq_ctxgates.errors import UserError

# What is summed over sentences.
TOKENS, ERRORS, CONTEXT_ERRORS = range(3)
# Name of a rate: the sums it divides.
RATES = {"FER": (ERRORS, TOKENS), "CER": (CONTEXT_ERRORS, TOKENS), "CE/FE": (CONTEXT_ERRORS, ERRORS)}


@torch.no_grad()
def predicted_words(model: Any, batch: Dict[str, Any], padding: int) -> List[np.ndarray]:
    """The arg-max of forced decoding for each target token of a batch, (its target length,) for each sentence, in the
    order of the batch."""
    is_token = batch["target"].ne(padding)
    if hasattr(model, "required_streams"):  # one of ours leaves out what is not needed
        words = model(**batch["net_input"], return_attention=False, output_positions=is_token)[0].argmax(dim=-1)
    else:
        words = _scores(model, batch).argmax(dim=-1)[is_token]
    return [part.cpu().numpy() for part in words.split(is_token.sum(dim=1).tolist())]


def _scores(model: Any, batch: Dict[str, Any]) -> Tensor:
    """What has its maximum where the probabilities have it, (batch, target length, vocabulary)."""
    output = model(**batch["net_input"])
    if getattr(model.decoder, "adaptive_softmax", None) is None:
        logits: Tensor = output[0]
        return logits
    log_probs: Tensor = model.get_normalized_probs(output, log_probs=True)  # with the target it would skip clusters
    return log_probs


def count_errors(
    labeller: GateLabeller,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    predictions: Sequence[np.ndarray],
) -> np.ndarray:
    """The number of target positions, errors and context selection errors of each sentence.

    Args:
        sources: token ids of each sentence
        targets: the same of its reference
        predictions: the word predicted for each of the target's, as :func:`predicted_words`

    Returns:
        (sentences, 3) int64: TOKENS, ERRORS, CONTEXT_ERRORS
    """
    source, target = flat(sources), flat(targets)
    words = np.concatenate(predictions)
    labels, predicted = (labeller.label_sentences(source, target, chosen) for chosen in (target.ids, words))
    is_labelled = (labels != IGNORE) & (predicted != IGNORE)
    at_token = np.stack([np.ones(len(words), np.int64), words != target.ids, is_labelled & (labels != predicted)])
    return np.add.reduceat(at_token, target.start[:-1], axis=1).T


def flat(sentences: Sequence[np.ndarray]) -> Sentences:
    """Sentences one after the other."""
    return Sentences(np.concatenate(sentences), starts(np.array([len(sentence) for sentence in sentences])))


def forced_decoding_errors(
    inference: Inference, split: str, max_tokens: Optional[int] = None, batch_size: Optional[int] = None
) -> np.ndarray:
    """The errors of a model over a split, see :func:`count_errors`: a row for each of the split's sentences, zeros for
    one that is longer than the model's positions.

    Raises:
        UserError: there is no such split, or the tables of ``ctxgates gate-labels`` are not in the data directory.
    """
    languages = inference.task.cfg.source_lang, inference.task.cfg.target_lang
    labeller = load_labeller(inference.data_dir, *languages)
    padding = inference.task.target_dictionary.pad()
    rows: List[int] = []
    predictions: List[np.ndarray] = []
    for batch in inference.batches(split, max_tokens, batch_size):
        rows += batch["id"].tolist()
        predictions += predicted_words(inference.model, batch, padding)
    sides = [inference.split(split).load_language(language) for language in languages]
    sources, targets = ([side[row].numpy() for row in rows] for side in sides)
    errors = np.zeros((len(sides[0]), 3), np.int64)
    if rows:
        errors[rows] = count_errors(labeller, sources, targets, predictions)
    return errors


@dataclass(frozen=True)
class Comparison:
    """The errors of several systems over the sentences that all of them read.

    names: of the systems, the baseline first
    errors: for each system (sentences, 3), as of :func:`forced_decoding_errors`
    resamples, seed: of the bootstrap
    """

    names: Sequence[str]
    errors: Sequence[np.ndarray]
    resamples: int
    seed: int

    def rate(self, system: int, name: str) -> Estimate:
        """FER, CER or CE/FE of a system, from 0 to 1."""
        above, below = RATES[name]
        return bootstrap(self.errors[system], lambda sums: _ratio(sums, above, below), self.resamples, self.seed)

    def difference(self, system: int, name: str) -> Estimate:
        """The rate less that of the first system, with the paired interval; undefined for the first itself."""
        if system == 0:
            return Estimate(None, None, None)
        both = np.concatenate([self.errors[system], self.errors[0]], axis=1)
        above, below = RATES[name]

        def figure(sums: np.ndarray) -> np.ndarray:
            return _ratio(sums, above, below) - _ratio(sums, above + 3, below + 3)

        return bootstrap(both, figure, self.resamples, self.seed)

    def as_dicts(self) -> List[Dict[str, Any]]:
        """All figures of each system, in percent."""
        rows = []
        for number, name in enumerate(self.names):
            row: Dict[str, Any] = {"system": name}
            for key, total in zip(("errors", "context_errors"), self.errors[number].sum(axis=0)[1:].tolist()):
                row[key] = total
            for rate in RATES:
                row.update(self.rate(number, rate).times(100).as_dict(rate))
                row.update(self.difference(number, rate).times(100).as_dict(f"{rate}_difference"))
            rows.append(row)
        return rows


def _ratio(sums: np.ndarray, above: int, below: int) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.asarray(sums[..., above] / sums[..., below])


def compare(names: Sequence[str], errors: Sequence[np.ndarray], resamples: int, seed: int) -> Comparison:
    """The comparison of systems over the sentences that none of them left out.

    Raises:
        UserError: there is no such sentence.
    """
    is_read = np.logical_and.reduce([counts[:, TOKENS] > 0 for counts in errors])
    if not is_read.any():
        raise UserError("no sentence is short enough for every model")
    return Comparison(names, [counts[is_read] for counts in errors], resamples, seed)


def tables(comparison: Comparison) -> List[Table]:
    """The rates of each system, and where there are several their differences to the first, in percent."""
    rows, differences = [], []
    for number, name in enumerate(comparison.names):
        rows.append([name, *(comparison.rate(number, rate).times(100).text(".1f") for rate in RATES)])
        if number:
            shown = (comparison.difference(number, rate).times(100).text("+.2f") for rate in RATES)
            differences.append([name, *shown])
    found = [Table({"system": "", **{f"{rate} (%)": "" for rate in RATES}}, rows)]
    if differences:
        first = comparison.names[0]
        found.append(Table({f"less {first}": "", **{f"{rate} (% points)": "" for rate in RATES}}, differences))
    return found


def error_figure(comparison: Comparison, about: str) -> Any:
    """A matplotlib figure: bars of the rates with their intervals, a panel each."""
    figure = new_figure(3.2 * len(RATES), 3.6)
    drawn = {}
    for name in RATES:
        rates = [comparison.rate(number, name).times(100) for number in range(len(comparison.names))]
        drawn[f"{name} (%)"] = [(rate.value, (rate.low, rate.high)) for rate in rates]
    panels(figure, comparison.names, drawn, about)
    return figure


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog="ctxgates analyze forced-decoding",
        description="Forced decoding error rate (FER), context selection error rate (CER) and CE/FE of any number of "
        "models, fairseq's own too, with bootstrap intervals that are paired. The first model is the baseline.",
    )
    add_inference_options(parser, several=True)
    parser.add_argument("--names", nargs="+", metavar="NAME", help="the models' names (default: from --path)")
    add_bootstrap_options(parser)
    add_report_options(parser, csv="the figures of each model", figure="the rates")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Print the tables; write the files that are asked for."""
    args = get_parser().parse_args(argv)
    check_outputs(args)
    quiet_logging()
    paths = checkpoint_paths(args)
    names = system_names(paths, args.names)
    errors, languages = [], ""
    for path in paths:
        inference = Inference.from_options(args, path)
        pair = f"{inference.task.cfg.source_lang}-{inference.task.cfg.target_lang}"
        if languages not in ("", pair):
            raise UserError(f"{path} translates {pair}, {paths[0]} {languages}: compare models of one direction")
        languages = pair
        errors.append(forced_decoding_errors(inference, args.gen_subset, args.max_tokens, args.batch_size))
    comparison = compare(names, errors, args.resamples, args.seed)
    sentences, tokens = len(comparison.errors[0]), int(comparison.errors[0][:, TOKENS].sum())
    over = f"forced decoding over {args.gen_subset} of {{}}, {languages}: {sentences} sentences, {tokens} target tokens"
    left_out = len(errors[0]) - sentences
    print(over.format(args.data) + (f" ({left_out} sentences are too long for a model)" if left_out else ""))
    print("\n\n".join(table.text() for table in tables(comparison)))
    rows = comparison.as_dicts()
    report = {
        "data": args.data,
        "split": args.gen_subset,
        "languages": languages,
        "sentences": sentences,
        "target_tokens": tokens,
        "unit": "percent",
        "resamples": args.resamples,
        "seed": args.seed,
        "systems": [{"path": path, **row} for path, row in zip(paths, rows)],
    }
    figure = error_figure(comparison, over.format(inference.data_dir.name)) if args.figure else None
    write_report(args, report, Table(dict.fromkeys(rows[0], ""), [list(row.values()) for row in rows]), figure)
