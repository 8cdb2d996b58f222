"""Coherence of translated documents (Kuang and Xiong 2018, Table 5, after Lapata and Barzilay 2005).

``ctxgates analyze coherence --sys plain.out isg.out --ref test.en --documents test.docids --vectors vectors.bin``

Coherence is the mean over adjacent sentences S_1, S_2 of a document of the paper's equation 13,

    sim(S_1, S_2) = cos(μ(S_1), μ(S_2)),   μ(S) the mean of the vectors of the words of S.

Words without a vector are left out. A pair is not counted if one of its sentences has no word with a vector. gensim
reads the vectors (word2vec's text or binary format) or trains them here.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence

import numpy as np

from fairseq_ctxgates.analysis.analysis import Analysis
from fairseq_ctxgates.analysis.bootstrap import RESAMPLES, Estimate, add_bootstrap_options, bootstrap_mean
from fairseq_ctxgates.analysis.figures import bars_with_intervals, legend_above, new_figure
from fairseq_ctxgates.analysis.options import add_file_option, add_names_option
from fairseq_ctxgates.analysis.report import Cell, Result, Table, add_report_options
from fairseq_ctxgates.analysis.systems import check_length, read_translations, system_names
from fairseq_ctxgates.analysis.word_vectors import Words, WordVectors, add_vector_options, get_vectors, import_gensim
from fairseq_ctxgates.command_line import CommandParser, add_subword_option
from fairseq_ctxgates.data.subwords import JOINABLE, join_subwords
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.documents import (
    find_preceding_sentences,
    read_blank_line_separated,
    read_document_names,
)
from fairseq_ctxgates.inter_sentence.preceding_rows import NONE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFERENCE = "reference"

# --- coherence


@dataclass(frozen=True)
class Coherence:
    """The coherence of one text.

    Attributes:
        similarities: sim of each pair of adjacent sentences, (pairs,); NaN if one of them has no word with a vector
        mean: over the similarities that are not NaN
        known_words: the share of the words that have a vector; None for a text without words
    """

    similarities: np.ndarray
    mean: Estimate
    known_words: Optional[float]

    @property
    def pairs(self) -> int:
        """How many pairs have a similarity."""
        return int(np.isfinite(self.similarities).sum())


def sentence_vector(words: Words, vectors: WordVectors) -> np.ndarray:
    """μ(S), the mean of the words' vectors, (dimensions,) float64; NaN if no word has a vector."""
    known = [word for word in words if word in vectors]
    if not known:
        return np.full(vectors.vector_size, np.nan)
    return np.asarray(vectors[known], dtype=np.float64).mean(axis=0)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine of each pair of rows of two arrays, both (pairs, dimensions): (pairs,); NaN for a row of 0 or NaN."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / np.where(lengths == 0, np.nan, lengths)


def coherence(
    sentences: Sequence[Words], preceding: np.ndarray, vectors: WordVectors, resamples: int = RESAMPLES, seed: int = 1
) -> Coherence:
    """The coherence of a text.

    Args:
        sentences: the words of each sentence
        preceding: the row of the preceding sentence in the same document, or ``NONE``, (sentences,)
        vectors: the word vectors
        resamples, seed: of the bootstrap, which resamples pairs of sentences
    """
    means = np.stack([sentence_vector(words, vectors) for words in sentences])
    second = np.flatnonzero(preceding != NONE)
    similarities = cosines(means[preceding[second]], means[second])
    counted = similarities[np.isfinite(similarities)]
    mean = bootstrap_mean(counted, resamples, seed) if len(counted) else Estimate(None, None, None)
    words = [word for sentence in sentences for word in sentence]
    known = sum(word in vectors for word in words) / len(words) if words else None
    return Coherence(similarities, mean, known)


def find_documents(args: argparse.Namespace, is_empty: np.ndarray) -> np.ndarray:
    """The number of each reference sentence's document, (sentences,); not every number need occur.

    Args:
        is_empty: which sentences are empty lines, (sentences,) bool
    """
    if args.documents:
        return read_document_names(args.documents, is_empty, args.ref)
    if args.blank_line_separated:
        return read_blank_line_separated(args.blank_line_separated, is_empty, args.ref)
    return np.zeros(len(is_empty), dtype=np.int64)


# --- result


def coherence_figure(found: Dict[str, Coherence]) -> Figure:
    """A bar for each text, with its interval; no bar for a text without a counted pair."""
    figure = new_figure(max(5.0, 1.1 * len(found) + 2.5), 4.2)
    axes = figure.add_subplot()
    series = {name: [result.mean] for name, result in found.items() if result.mean.low is not None}
    bars_with_intervals(axes, ["adjacent sentences"], series)
    axes.set_ylabel("mean cosine similarity")
    legend_above(axes, columns=2)
    return figure


def summary_table(found: Dict[str, Coherence]) -> Table:
    """A row for each text."""
    columns = {"text": "", "coherence": "", "pairs": ",d", "words with a vector": ".1%"}
    return Table(
        columns,
        [[name, result.mean.text(".4f"), result.pairs, result.known_words] for name, result in found.items()],
    )


def pair_table(found: Dict[str, Coherence], preceding: np.ndarray) -> Table:
    """A row for each pair of adjacent sentences."""
    columns = {"sentence": "d", "after": "d", **{f"similarity in {name}": ".4f" for name in found}}
    second = np.flatnonzero(preceding != NONE)
    rows: List[List[Cell]] = []
    for row, values in zip(second, np.stack([result.similarities for result in found.values()], axis=1)):
        similarities = (None if np.isnan(value) else float(value) for value in values)
        rows.append([int(row) + 1, int(preceding[row]) + 1, *similarities])
    return Table(columns, rows)


# --- command


class CoherenceAnalysis(Analysis):
    """Mean cosine similarity of adjacent sentences of translated documents and of their reference."""

    name = "coherence"
    output_options = (*Analysis.output_options, "save_vectors")

    def add_options(self, parser: CommandParser) -> None:
        """The texts, their documents, the vectors and the files to write."""
        add_file_option(
            parser,
            "--sys",
            "the translations of each system: plain text, one sentence per line, or the output of fairseq-generate",
            several=True,
            default=[],
        )
        add_names_option(parser, "systems", "--sys")
        parser.add_condition("--sys", lambda args: args.sys, "names")
        add_file_option(parser, "--ref", "the reference translation", required=True)
        parser.add_argument("--lowercase", action="store_true", help="lower-case all text, for lower-case word vectors")
        add_subword_option(parser, JOINABLE, "subword_nmt", "join the subwords of all text")
        _add_document_options(parser)
        add_vector_options(parser)
        add_bootstrap_options(parser, "pairs of adjacent sentences", ", and of the training of word vectors")
        add_report_options(parser, csv="the similarity of each pair of sentences", figure="a bar for each text")

    def run(self, args: argparse.Namespace) -> Result:
        """Read or train the vectors, and measure every text."""
        import_gensim()
        ending = None if args.save_vectors is None else args.save_vectors.suffix
        if ending in (".gz", ".bz2", ".xz", ".zst"):  # by which gensim chooses how to read a file
            raise UserError(
                f"--save-vectors {args.save_vectors}: they are not compressed, leave out the ending {ending}"
            )
        texts = read_texts_by_name(args)
        is_empty = np.array([not line.strip() for line in texts[REFERENCE]])
        documents = find_documents(args, is_empty)
        preceding = find_preceding_sentences(documents, is_empty)
        if (preceding == NONE).all():
            raise UserError(f"no two sentences of {args.ref} are of one document: there is nothing to compare")

        def prepare(line: str) -> Words:
            (joined,) = join_subwords([line], args.remove_bpe)
            return (joined.lower() if args.lowercase else joined).split()

        vectors = get_vectors(args, prepare)
        found = {
            name: coherence([prepare(line) for line in lines], preceding, vectors, args.resamples, args.seed)
            for name, lines in texts.items()
        }
        if not any(result.pairs for result in found.values()):
            raise UserError("no two adjacent sentences have words with a vector: are these of this language and case?")
        source = str(args.vectors or f"trained on {', '.join(map(str, args.train_vectors))}")
        count = len(np.unique(documents[~is_empty]))
        report = {"ref": str(args.ref), "documents": count, "vectors": source, "texts": summaries_as_dict(found)}
        return Result(
            headline=f"documents: {count:,}; word vectors: {len(vectors):,}, {source}",
            tables=[summary_table(found)],
            report=report,
            csv=pair_table(found, preceding),
            figure=lambda: coherence_figure(found),
        )


def summaries_as_dict(found: Dict[str, Coherence]) -> Dict[str, object]:
    """The coherence of each text, for JSON."""
    return {
        name: {**result.mean.as_dict("coherence"), "pairs": result.pairs, "known_words": result.known_words}
        for name, result in found.items()
    }


def _add_document_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    add_file_option(group, "--documents", "file with the name of each sentence's document, one line for each sentence")
    help_text = "the text in either language, with a blank line between two documents"
    add_file_option(group, "--blank-line-separated", help_text)
    group.add_argument("--one-document", action="store_true", help="all sentences are one document")


def read_texts_by_name(args: argparse.Namespace) -> Dict[str, List[str]]:
    """The lines of each text by its name, the reference last.

    Raises:
        UserError: a file cannot be read, or has another number of sentences than the reference.
    """
    reference = read_translations(args.ref)
    names = system_names(args.sys, args.names) if args.sys else []
    if REFERENCE in names:
        raise UserError(f"--names: {REFERENCE!r} is the name of --ref")
    texts = dict(zip(names, map(read_translations, args.sys)))
    for path, lines in zip(args.sys, texts.values()):
        check_length(path, len(lines), args.ref, len(reference))
    return {**texts, REFERENCE: reference}
