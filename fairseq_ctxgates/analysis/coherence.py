"""Coherence of translated documents (Kuang and Xiong 2018, Table 5, after Lapata and Barzilay 2005).

``ctxgates analyze coherence --sys plain.out isg.out --ref test.en --documents test.docids --vectors vectors.bin``

The mean over adjacent sentences S_1, S_2 of a document of

    sim(S_1, S_2) = cos(μ(S_1), μ(S_2)),   μ(S) the mean of the vectors of its words,

the paper's equation 13. Words without a vector are left out; a pair in which a sentence has no word with one is not
counted. The vectors are read (word2vec's text or binary format) or trained here, by gensim.
"""

from __future__ import annotations

import argparse
import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np

from fairseq_ctxgates.analysis.bootstrap import Estimate, add_bootstrap_options, bootstrap, positive
from fairseq_ctxgates.analysis.figures import bars, legend_above, new_figure
from fairseq_ctxgates.analysis.inference import quiet_logging
from fairseq_ctxgates.analysis.report import Table, add_report_options, check_outputs, write_report
from fairseq_ctxgates.analysis.systems import (
    add_subword_option,
    check_length,
    join_subwords,
    read_translations,
    system_names,
)
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write
from fairseq_ctxgates.inter_sentence.documents import (
    find_preceding_sentences,
    read_blank_line_separated,
    read_document_names,
)
from fairseq_ctxgates.inter_sentence.preceding_sentences import NONE

REFERENCE = "reference"
Words = List[str]


def import_gensim() -> Any:
    """gensim's models; UserError where it is not installed, as the project does without it elsewhere."""
    try:
        import gensim.models
    except ImportError as error:
        raise UserError(f"coherence needs gensim ({error}): pip install 'fairseq-ctxgates[coherence]'") from error
    return gensim.models


# --- word vectors


def read_vectors(path: Path) -> Any:
    """gensim's ``KeyedVectors`` of a file in word2vec's text or binary format, which may be compressed with gzip.

    Raises:
        UserError: the file is not there, or is not of that format.
    """
    models = import_gensim()
    try:
        vectors = models.KeyedVectors.load_word2vec_format(str(path), binary=is_binary(path), unicode_errors="replace")
    except (EOFError, OSError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} is no whole file in word2vec's format: {reason}") from error
    if not len(vectors):
        raise UserError(f"{path} holds no vectors")
    return vectors


def is_binary(path: Path) -> bool:
    """Whether vectors are stored as binary numbers: whether the line after the first does not end in as many decimal
    numbers as the first line says.

    Raises:
        ValueError: the first line does not give the number of words and of dimensions.
    """
    with _open(path) as stream:
        header, line = stream.readline(1000).split(), stream.readline(1 << 20).split()
    if len(header) != 2 or not all(number.isdigit() for number in header):
        raise ValueError("its first line is not the number of words and of dimensions")
    dimensions = int(header[1])
    try:
        numbers = [float(number) for number in line[-dimensions:]]
    except ValueError:
        return True
    return len(numbers) != dimensions


class TrainingText:
    """The sentences of text files, each a list of words, read anew in every pass."""

    def __init__(self, paths: Sequence[Path], prepare: Callable[[str], Words]) -> None:
        self.paths = paths
        self.prepare = prepare

    def __iter__(self) -> Iterator[Words]:
        for path in self.paths:
            try:
                with _open(path) as stream:
                    for number, line in enumerate(stream, start=1):
                        yield self.prepare(_decoded(line, path, number))
            except (EOFError, OSError, zlib.error) as error:
                raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _decoded(line: bytes, path: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: line {number} is not UTF-8: convert the file") from error


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def train_vectors(text: TrainingText, args: argparse.Namespace) -> Any:
    """gensim's ``KeyedVectors`` of words, trained by word2vec (CBOW) on a text; one worker, so that the seed decides.

    Raises:
        UserError: the text cannot be read, or no word occurs ``--min-count`` times.
    """
    models = import_gensim()
    model = models.Word2Vec(
        vector_size=args.dim,
        window=args.window,
        min_count=args.min_count,
        epochs=args.epochs,
        seed=args.seed,
        workers=1,
    )
    model.build_vocab(text)
    if not len(model.wv):
        names = ", ".join(map(str, text.paths))
        raise UserError(f"--train-vectors {names}: no word occurs {args.min_count} times (--min-count)")
    model.train(text, total_examples=model.corpus_count, epochs=model.epochs)
    return model.wv


def save_vectors(vectors: Any, path: Path) -> None:
    """Write vectors in word2vec's format, binary where the file's name ends in .bin, whole or not at all."""
    try:
        with atomic_write(path) as temporary:
            vectors.save_word2vec_format(str(temporary), binary=path.suffix == ".bin")
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror}") from error


# --- coherence


@dataclass(frozen=True)
class Coherence:
    """The coherence of one text.

    ``similarities``: sim of each pair of adjacent sentences, (pairs,), NaN where a sentence has no word with a vector.
    ``mean``: over the others. ``known_words``: the share of the words that have a vector; None without words.
    """

    similarities: np.ndarray
    mean: Estimate
    known_words: Optional[float]

    @property
    def pairs(self) -> int:
        """How many pairs are counted."""
        return int(np.isfinite(self.similarities).sum())


def sentence_vector(words: Words, vectors: Any) -> np.ndarray:
    """μ(S), (dimensions,) float64: the mean of the vectors of the words that have one; NaN where none has."""
    known = [word for word in words if word in vectors]
    if not known:
        return np.full(vectors.vector_size, np.nan)
    return np.asarray(vectors[known], dtype=np.float64).mean(axis=0)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cosine of each pair of rows, (pairs,), of two arrays (pairs, dimensions); NaN where a row is 0 or NaN."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(axis=1) / np.where(lengths == 0, np.nan, lengths)


def coherence(
    sentences: Sequence[Words], before: np.ndarray, vectors: Any, resamples: int = 1000, seed: int = 1
) -> Coherence:
    """The coherence of a text.

    Args:
        sentences: the words of each
        before: for each sentence the one before it in its document, or ``NONE``, (sentences,)
        vectors: gensim's ``KeyedVectors``
        resamples, seed: of the interval, over pairs of sentences
    """
    means = np.stack([sentence_vector(words, vectors) for words in sentences])
    second = np.flatnonzero(before != NONE)
    similarities = cosines(means[before[second]], means[second])
    counted = similarities[np.isfinite(similarities)]
    mean = Estimate(None, None, None)
    if len(counted):
        sums = np.stack([counted, np.ones(len(counted))], axis=1)
        mean = bootstrap(sums, lambda totals: totals[..., 0] / totals[..., 1], resamples, seed)
    words = [word for sentence in sentences for word in sentence]
    known = sum(word in vectors for word in words) / len(words) if words else None
    return Coherence(similarities, mean, known)


def find_documents(args: argparse.Namespace, reference: Sequence[str]) -> np.ndarray:
    """The number of the document of each sentence of the reference, (sentences,)."""
    is_empty = np.array([not line.strip() for line in reference])
    if args.documents:
        return read_document_names(args.documents, is_empty, args.ref)
    if args.blank_line_separated:
        return read_blank_line_separated(args.blank_line_separated, is_empty, args.ref)
    return np.zeros(len(reference), dtype=np.int64)


# --- command


def coherence_figure(found: Dict[str, Coherence]) -> Any:
    """A matplotlib figure: a bar for each text, with its interval."""
    figure = new_figure(max(5.0, 1.1 * len(found) + 2.5), 4.2)
    axes = figure.add_subplot()
    shown = {name: result.mean for name, result in found.items() if result.mean.low is not None}
    bars(
        axes,
        ["adjacent sentences"],
        {name: [mean.value] for name, mean in shown.items()},
        {name: [(mean.low, mean.high)] for name, mean in shown.items()},
    )
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


def pair_table(found: Dict[str, Coherence], before: np.ndarray) -> Table:
    """A row for each pair of adjacent sentences."""
    columns = {"sentence": "d", "after": "d", **{f"similarity in {name}": ".4f" for name in found}}
    second = np.flatnonzero(before != NONE)
    similarities = np.stack([result.similarities for result in found.values()], axis=1)
    return Table(
        columns,
        [
            [int(row) + 1, int(before[row]) + 1, *(None if np.isnan(value) else float(value) for value in values)]
            for row, values in zip(second, similarities)
        ],
    )


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog="ctxgates analyze coherence",
        description="Mean cosine similarity of adjacent sentences of translated documents and of their reference.",
    )
    parser.add_argument(
        "--sys",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="the translations of each system: plain text, a sentence a line, or what fairseq-generate printed",
    )
    parser.add_argument("--names", nargs="+", metavar="NAME", help="the systems' names (default: from --sys)")
    parser.add_argument("--ref", required=True, type=Path, metavar="FILE", help="the reference translation")
    parser.add_argument("--lowercase", action="store_true", help="lower-case all text, as that of the vectors")
    add_subword_option(parser)
    _add_document_options(parser)
    _add_vector_options(parser)
    add_bootstrap_options(parser)
    add_report_options(parser, csv="the similarity of each pair of sentences", figure="a bar for each text")
    return parser


def _add_document_options(parser: argparse.ArgumentParser) -> None:
    documents = parser.add_mutually_exclusive_group(required=True)
    documents.add_argument(
        "--documents", type=Path, metavar="FILE", help="the name of the document of each sentence, a line a sentence"
    )
    documents.add_argument(
        "--blank-line-separated",
        type=Path,
        metavar="FILE",
        help="the text in either language, with a blank line between two documents",
    )
    documents.add_argument("--one-document", action="store_true", help="all sentences are one document")


def _add_vector_options(parser: argparse.ArgumentParser) -> None:
    vectors = parser.add_mutually_exclusive_group(required=True)
    vectors.add_argument(
        "--vectors", type=Path, metavar="FILE", help="word vectors in word2vec's text or binary format"
    )
    vectors.add_argument(
        "--train-vectors",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="train them on this text, tokenized as the translations, a sentence a line",
    )
    parser.add_argument("--save-vectors", type=Path, metavar="FILE", help="write the trained vectors to this file")
    for name, default, what in (
        ("--dim", 400, "dimensions of the trained vectors"),
        ("--window", 5, "words before and after a word that word2vec reads"),
        ("--min-count", 5, "a rarer word gets no vector"),
        ("--epochs", 5, "passes over the text"),
    ):
        parser.add_argument(name, type=positive, default=default, metavar="N", help=f"{what} (default: {default})")


def read_texts(args: argparse.Namespace) -> Dict[str, List[str]]:
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


def get_vectors(args: argparse.Namespace, prepare: Callable[[str], Words]) -> Any:
    """gensim's ``KeyedVectors``, read or trained, and saved where that is asked for."""
    if args.vectors:
        return read_vectors(args.vectors)
    vectors = train_vectors(TrainingText(args.train_vectors, prepare), args)
    if args.save_vectors:
        save_vectors(vectors, args.save_vectors)
    return vectors


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Print the table; write the files and the figure that are asked for."""
    args = get_parser().parse_args(argv)
    if args.save_vectors and not args.train_vectors:
        raise UserError("--save-vectors is for vectors that are trained here: give --train-vectors")
    check_outputs(args, ("json", "csv", "figure", "save_vectors"))
    import_gensim()
    quiet_logging()
    texts = read_texts(args)
    documents = find_documents(args, texts[REFERENCE])
    before = find_preceding_sentences(documents, np.array([not line.strip() for line in texts[REFERENCE]]))
    if (before == NONE).all():
        raise UserError(f"no two sentences of {args.ref} are of one document: there is nothing to compare")

    def prepare(line: str) -> Words:
        (joined,) = join_subwords([line.lower() if args.lowercase else line], args.remove_bpe)
        return joined.split()

    vectors = get_vectors(args, prepare)
    found = {
        name: coherence([prepare(line) for line in lines], before, vectors, args.resamples, args.seed)
        for name, lines in texts.items()
    }
    source = str(args.vectors or f"trained on {', '.join(map(str, args.train_vectors))}")
    print(f"documents: {documents.max() + 1:,}; word vectors: {len(vectors):,}, {source}")
    print(summary_table(found).text())
    report = {
        "ref": str(args.ref),
        "documents": int(documents.max()) + 1,
        "vectors": source,
        "texts": {
            name: {**result.mean.as_dict("coherence"), "pairs": result.pairs, "known_words": result.known_words}
            for name, result in found.items()
        },
    }
    write_report(args, report, pair_table(found, before), coherence_figure(found))
