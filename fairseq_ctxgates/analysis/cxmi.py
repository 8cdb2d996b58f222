"""How many bits the preceding sentence saves for each target word (Fernandes et al. 2021, *Measuring and Increasing
Context Usage in Context-Aware Machine Translation*).

``ctxgates analyze cxmi data-bin/X --path checkpoint.pt --csv cxmi.csv --figure cxmi.png``

The conditional cross-mutual information CXMI(C → Y | X) is the cross-entropy without the preceding sentence C minus the
cross-entropy with it: the mean over the target tokens, end of sentence included, of

    log2 P(y_i | y_<i, x, c) - log2 P(y_i | y_<i, x).

The first term is the model's score. The second is the score of the same model without preceding sentences (each is
replaced by NULL, or none is concatenated), of the same model with the preceding sentences of another sentence
(``--shifted-context``), or of the model of ``--baseline-path``. Several models are measured one after the other.
``--html`` shows one document, with what each word gains under each model.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Dict, List

import numpy as np

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.bootstrap import add_bootstrap_options
from fairseq_ctxgates.analysis.cxmi_page import Document
from fairseq_ctxgates.analysis.cxmi_report import (
    cxmi_figure,
    drawn_sentence,
    sentence_table,
    summary_table,
    token_table,
)
from fairseq_ctxgates.analysis.cxmi_scores import WITH, Measured, SentenceScores
from fairseq_ctxgates.analysis.inference import (
    Inference,
    add_inference_options,
    check_checkpoints,
    check_overrides,
    checkpoint_paths,
)
from fairseq_ctxgates.analysis.options import add_names_option
from fairseq_ctxgates.analysis.preceding_context import has_inter_sentence_gate, preceding_stream
from fairseq_ctxgates.analysis.report import Result, add_page_option, add_report_options
from fairseq_ctxgates.analysis.scores import token_log_probs
from fairseq_ctxgates.analysis.systems import system_names
from fairseq_ctxgates.command_line import CommandParser, add_subword_option
from fairseq_ctxgates.data.subwords import GROUPABLE
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.concatenated_sentences import ConcatenatedSentences
from fairseq_ctxgates.inter_sentence.preceding_rows import NONE
from fairseq_ctxgates.inter_sentence.preceding_stream import is_shifted


def check_reads_context(inference: Inference) -> None:
    """Raise UserError unless the model reads preceding sentences, by a gate or by concatenation."""
    if not (has_inter_sentence_gate(inference.model) or concatenates(inference)):
        raise UserError(
            f"{inference.path} reads no preceding sentence: give --path a model trained with --arch isg_transformer, "
            f"--inter-sentence-gate or --concatenate-preceding, and this one to --baseline-path"
        )


def concatenates(inference: Inference) -> bool:
    """Whether the model's source is concatenated with the preceding sentence."""
    return getattr(inference.task.cfg, "concatenate_preceding", None) is not None


def without_context(args: argparse.Namespace, path: str, inference: Inference) -> Inference:
    """The model that CXMI is measured against: that of ``--baseline-path``, or the same model with the preceding
    sentences of other sentences or with none.

    Raises:
        UserError: the model of ``--baseline-path`` translates in another direction, ``--model-overrides`` has the
            option that takes the preceding sentences away, or the model already reads those of other sentences.
    """
    if args.baseline_path:
        baseline = Inference.from_options(args, path=args.baseline_path)
        baseline.check_direction(path, inference.direction)
        return baseline
    overrides = {"inter_sentence_ablation": "null"} if has_inter_sentence_gate(inference.model) else {}
    for name in overrides.keys() & args.model_overrides.keys():
        raise UserError(
            f"--model-overrides: {name!r} takes away what cxmi measures: leave it out, or give --baseline-path"
        )
    if args.shifted_context:
        if is_shifted(inference.task.cfg):
            raise UserError(f"--shifted-context: {path} reads the preceding sentences of others already; leave it out")
        same = Inference.from_options(args, path=path)
        same.task.cfg.preceding_context = "shifted"
        return same
    same = Inference.from_options(args, path=path, **overrides)
    if concatenates(same):
        for name in ConcatenatedSentences.saved_options:
            setattr(same.task.cfg, name, None)
    return same


def score_split(inference: Inference, args: argparse.Namespace) -> Dict[int, np.ndarray]:
    """log2 P of each target token, (target length,), by the row of the sentence in the split."""
    scores: Dict[int, np.ndarray] = {}
    for batch in inference.batches(args.gen_subset, args.max_tokens, args.batch_size):
        log_probs = token_log_probs(inference, batch)
        scores.update(zip(batch["id"].tolist(), (row / np.log(2) for row in log_probs)))
    return scores


def score_sentences(inference: Inference, baseline: Inference, args: argparse.Namespace) -> List[SentenceScores]:
    """The scores of every sentence of the split that is not too long for either model.

    Raises:
        UserError: the split or its stream of preceding sentences does not exist, or every sentence is too long.
    """
    with_context, without = score_split(inference, args), score_split(baseline, args)
    rows = sorted(with_context.keys() & without.keys())
    if not rows:
        raise UserError(f"every sentence of {args.gen_subset} of {args.data} is too long for the models")
    dataset = inference.task.dataset(args.gen_subset)
    stream = preceding_stream(inference, args.gen_subset)
    dictionary = inference.task.target_dictionary
    return [
        SentenceScores(
            number=row + 1,
            is_preceded=bool(stream.rows[row, 0] != NONE),
            tokens=[dictionary[token] for token in dataset.tgt[row].tolist()],
            with_context=with_context[row],
            without=without[row],
        )
        for row in rows
    ]


def check_shown(inference: Inference, baseline: Inference, args: argparse.Namespace) -> None:
    """Raise UserError, before the whole split is scored, if the figure or the page would have nothing to show."""
    for model in (inference, baseline):
        if args.sentence is None:
            model.load_split(args.gen_subset)
        elif args.figure:
            model.check_sentence(args.gen_subset, args.sentence)
        else:  # the page has other sentences too
            model.sentence(args.gen_subset, args.sentence)
    rows = sorted({*inference.rows_read(args.gen_subset)} & {*baseline.rows_read(args.gen_subset)})
    if rows and (preceding_stream(inference, args.gen_subset).rows[rows, 0] == NONE).all():
        raise UserError(f"no sentence of {args.gen_subset} has a preceding one: there is nothing to draw")


class CXMIAnalysis(Analysis):
    """How many bits the preceding sentence saves for each target word: log2 P with it minus log2 P without it."""

    name = "cxmi"
    output_options = (*Analysis.output_options, "tokens", "html")
    figure_options = ("sentence",)

    def add_options(self, parser: CommandParser) -> None:
        """The models, the split, the intervals, the files to write and the sentence to draw."""
        add_inference_options(parser, several=True)
        add_names_option(parser, "models", "--path")
        baseline = parser.add_mutually_exclusive_group()
        baseline.add_argument(
            "--baseline-path",
            metavar="CHECKPOINT",
            help="a model without preceding sentences (default: each model of --path, every preceding sentence NULL)",
        )
        baseline.add_argument(
            "--shifted-context",
            action="store_true",
            help="compare with the same model given the preceding sentences of another sentence, as with "
            "--preceding-context shifted: the difference is what the right sentences are worth",
        )
        add_bootstrap_options(parser)
        add_report_options(
            parser, csv="the scores of each sentence", figure="the first model's bits, for all sentences and for one"
        )
        parser.add_argument(
            "--tokens",
            type=Path,
            metavar="FILE",
            help="also write to this file, as CSV, what each target token gains (P-CXMI; Fernandes et al. 2023)",
        )
        purpose = "join the subwords of --tokens to words, each of which gains the sum of what its tokens gain"
        add_subword_option(parser, GROUPABLE, "none", purpose)
        parser.add_condition("--tokens", lambda args: args.tokens, "remove_bpe")
        add_page_option(parser, "what each word of a document gains")
        help_text = "draw sentence N, from 1, and show its document on the page (default: whichever saves most)"
        parser.add_argument("--sentence", type=int, metavar="N", help=help_text)

    def run(self, args: argparse.Namespace) -> Result:
        """Score the split with and without preceding sentences."""
        paths = checkpoint_paths(args)
        baselines = [args.baseline_path] if args.baseline_path else []
        check_checkpoints(baselines)
        check_overrides(args, [*paths, *baselines])
        models: List[Measured] = []
        document = Document()
        direction = ""
        for name, path in zip(system_names(paths, args.names), paths):
            inference = Inference.from_options(args, path=path)
            direction = direction or inference.direction
            inference.check_direction(paths[0], direction)
            check_reads_context(inference)
            baseline = without_context(args, path, inference)
            if (args.figure or args.html) and not models:
                check_shown(inference, baseline, args)
            sentences = score_sentences(inference, baseline, args)
            models.append(Measured.of(name, path, sentences, args.resamples, args.seed))
            if args.html:
                document.add(inference, models[-1], args)
        preceded = [sentence for sentence in models[0].sentences if sentence.is_preceded]
        drawn = drawn_sentence(models[0].sentences, args.sentence) if args.figure else None
        over = f"{args.gen_subset} of {args.data}"
        same = f"the same model{', preceding sentences shifted' if args.shifted_context else ''}"
        return Result(
            headline=f"CXMI over {over}; without: {args.baseline_path or same}",
            tables=[summary_table(models)],
            report={
                "baseline_path": args.baseline_path,
                "shifted_context": args.shifted_context,
                "data": args.data,
                "split": args.gen_subset,
                "unit": "bits for each target token",
                "systems": [model.as_dict() for model in models],
            },
            csv=sentence_table(models),
            more_csv={"tokens": token_table(models, args.remove_bpe)},
            figure=partial(cxmi_figure, preceded, models[0].groups[WITH], drawn) if drawn else None,
            page=document.page(f"What the preceding sentences are worth: {over}") if args.html else None,
        )
