"""Which sentences of a text belong to one document, and which sentence comes before each."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import List

import numpy as np

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_sentences import NONE


def read_lines(path: Path) -> List[str]:
    """The lines of a text file, which may be compressed with gzip, without the white space around them."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path} not found: check the path") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; name a text file") from error
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} is no whole gzip file ({error}): make it again") from error
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not text in UTF-8 ({error.reason}); convert the file") from error
    if not lines[-1]:
        lines.pop()
    return [line.strip() for line in lines]


def read_names(path: Path, is_empty: np.ndarray, text: object) -> np.ndarray:
    """The number of each sentence's document, from a file with the documents' names, a line a sentence.

    Args:
        is_empty: which sentences of the text are empty lines
        text: what the text is called in messages

    Raises:
        UserError: the file does not fit the text.
    """
    names = read_lines(path)
    sentences = len(is_empty)
    if len(names) != sentences:
        raise UserError(
            f"{path} names the documents of {len(names)} sentences, but {text} has {sentences}: give the "
            f"file that lies beside that text"
        )
    if "" in names:
        raise UserError(f"{path}, line {names.index('') + 1}: no document is named; each sentence needs a name")
    runs = Counter(name for name, _ in groupby(names))
    again = [name for name, number in runs.items() if number > 1]
    if again:
        print(
            f"warning: {path}: {len(again)} documents come back after others, the first of them {again[0]!r}, and are "
            f"taken as new ones: is the text in document order?",
            file=sys.stderr,
        )
    return np.cumsum([0, *(name != before for before, name in zip(names, names[1:]))])


def read_blank_line_separated(path: Path, is_empty: np.ndarray, text: object) -> np.ndarray:
    """The number of each sentence's document, from a file in which blank lines separate them; the text may have the
    blank lines as sentences, or not. Arguments and errors are those of :func:`read_names`."""
    is_blank = np.array([not line for line in read_lines(path)], dtype=bool)
    numbers = np.cumsum(is_blank)
    if len(is_blank) == len(is_empty):
        wrong = np.flatnonzero(is_blank != is_empty)
        if len(wrong):
            raise UserError(
                f"{path}, line {wrong[0] + 1}: blank in one of it and {text}, and not in the other: give the text "
                f"that {text} was made from"
            )
        return numbers
    if len(is_blank) - is_blank.sum() == len(is_empty):
        return numbers[~is_blank]
    raise UserError(
        f"{path} has {len(is_blank) - is_blank.sum()} sentences and {is_blank.sum()} blank lines, but {text} "
        f"has {len(is_empty)} sentences: give the text that it was made from"
    )


def preceding_rows(documents: np.ndarray, is_empty: np.ndarray) -> np.ndarray:
    """For each row the row before it, where it is of the same document and neither is empty, else -1: as in
    fairseq-interactive, an empty line ends a document."""
    has_one = np.zeros(len(documents), dtype=bool)
    has_one[1:] = (documents[1:] == documents[:-1]) & ~is_empty[1:] & ~is_empty[:-1]
    return np.where(has_one, np.arange(-1, len(documents) - 1), NONE)
