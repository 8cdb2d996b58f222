"""Word vectors in word2vec's format, read or trained by gensim."""

from __future__ import annotations

import argparse
import lzma
import zlib
from pathlib import Path
from typing import Any, Callable, Iterator, List, Protocol, Sequence

import numpy as np

from fairseq_ctxgates.analysis.options import add_file_option
from fairseq_ctxgates.command_line import CommandParser, positive
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.extras import needs_extra
from fairseq_ctxgates.files import atomic_write, iterate_lines, open_binary

Words = List[str]


class WordVectors(Protocol):
    """The part of gensim's ``KeyedVectors`` that is used here."""

    vector_size: int

    def __len__(self) -> int:
        """The number of words."""

    def __contains__(self, word: str) -> bool:
        """Whether a word has a vector."""

    def __getitem__(self, words: Words) -> np.ndarray:
        """The vectors of these words, (words, dimensions) float32."""

    def save_word2vec_format(self, path: str, binary: bool) -> None:
        """Write the vectors to a file."""


def import_gensim() -> Any:
    """The module ``gensim.models``, which no other analysis needs.

    Raises:
        UserError: gensim is not installed.
    """
    with needs_extra("coherence", "coherence"):
        import gensim.models
    return gensim.models


def read_vectors(path: Path) -> WordVectors:
    """The vectors of a file in word2vec's text or binary format, which may be compressed with gzip.

    Raises:
        UserError: the file does not exist, or has another format.
    """
    models = import_gensim()
    try:
        vectors: WordVectors = models.KeyedVectors.load_word2vec_format(
            str(path), binary=is_binary(path), unicode_errors="replace"
        )
    except (EOFError, OSError, ValueError, OverflowError, MemoryError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} is not a complete file in word2vec's format: {reason}") from error
    if not len(vectors):
        raise UserError(f"{path} holds no vectors")
    return vectors


def is_binary(path: Path) -> bool:
    """Whether vectors are stored as binary numbers.

    The first line gives the number of dimensions. In a text file the second line ends in that many decimal numbers.

    Raises:
        ValueError: the first line does not give the number of words and of dimensions.
    """
    with open_binary(path) as stream:
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
    """The sentences of text files, each a list of words; every iteration reads the files again."""

    def __init__(self, paths: Sequence[Path], prepare: Callable[[str], Words]) -> None:
        self.paths = paths
        self.prepare = prepare

    def __iter__(self) -> Iterator[Words]:
        for path in self.paths:
            yield from map(self.prepare, iterate_lines(path))


def train_vectors(text: TrainingText, args: argparse.Namespace) -> WordVectors:
    """Vectors trained by word2vec (CBOW) on a text, by one worker so that the same seed gives the same vectors.

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
    vectors: WordVectors = model.wv
    return vectors


def save_vectors(vectors: WordVectors, path: Path) -> None:
    """Write vectors atomically in word2vec's format, the binary one if the file's name ends in .bin."""
    try:
        with atomic_write(path) as temporary:
            vectors.save_word2vec_format(str(temporary), binary=path.suffix == ".bin")
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror}") from error


def add_vector_options(parser: CommandParser) -> None:
    """Add the options that say which word vectors are read, or how they are trained."""
    group = parser.add_mutually_exclusive_group(required=True)
    add_file_option(group, "--vectors", "word vectors in word2vec's text or binary format")
    help_text = "train word vectors on this text, tokenized like the translations, one sentence per line"
    add_file_option(group, "--train-vectors", help_text, several=True)
    add_file_option(parser, "--save-vectors", "write the trained vectors to this file")
    for name, default, what in (
        ("--dim", 400, "dimensions of the trained vectors"),
        ("--window", 5, "number of words before and after a word that word2vec reads"),
        ("--min-count", 5, "words that occur fewer times get no vector"),
        ("--epochs", 5, "passes over the training text"),
    ):
        parser.add_argument(name, type=positive, default=default, metavar="N", help=what)
    of_training = ("save_vectors", "dim", "window", "min_count", "epochs")
    parser.add_condition("--train-vectors", lambda args: args.train_vectors, *of_training)


def get_vectors(args: argparse.Namespace, prepare: Callable[[str], Words]) -> WordVectors:
    """The vectors, read or trained; trained ones are saved if ``--save-vectors`` is given.

    Args:
        prepare: turns a line of text into words
    """
    if args.vectors:
        return read_vectors(args.vectors)
    vectors = train_vectors(TrainingText(args.train_vectors, prepare), args)
    if args.save_vectors:
        save_vectors(vectors, args.save_vectors)
    return vectors
