"""The document of each sentence of a text, and the preceding sentence of each sentence."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import List, Optional

import numpy as np

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import iterate_lines
from fairseq_ctxgates.inter_sentence.preceding_rows import NONE


def read_document_names(path: Path, is_empty: np.ndarray, text: object) -> np.ndarray:
    """The number of each sentence's document, from a file with one document name a line, one line for each sentence.

    Args:
        is_empty: which sentences of the text are empty lines, (sentences,) bool
        text: the text's name in messages

    Returns:
        (sentences,) int64

    Raises:
        UserError: the file does not fit the text
    """
    runs: Counter[str] = Counter()
    lengths: List[int] = []
    unnamed: Optional[int] = None  # the first line without a name
    for name, lines in groupby(iterate_lines(path)):
        if not name and unnamed is None:
            unnamed = sum(lengths) + 1
        runs[name] += 1
        lengths.append(sum(1 for _ in lines))
    if sum(lengths) != len(is_empty):
        raise UserError(
            f"{path} names the documents of {sum(lengths)} sentences, but {text} has {len(is_empty)}: give the file "
            f"that belongs to this text"
        )
    if unnamed is not None:
        raise UserError(f"{path}, line {unnamed}: no document is named; each sentence needs a name")
    repeated = [name for name, count in runs.items() if count > 1]
    if repeated:
        print(
            f"warning: {path}: {len(repeated)} document names occur in several places, the first is {repeated[0]!r}; "
            f"each place counts as a new document: is the text in document order?",
            file=sys.stderr,
        )
    return np.arange(len(lengths)).repeat(lengths)


def read_blank_line_separated(path: Path, is_empty: np.ndarray, text: object) -> np.ndarray:
    """The number of each sentence's document, from a text file with a blank line between two documents.

    The blank lines may or may not be sentences of the binarized text. Arguments, result and errors are those of
    :func:`read_document_names`.
    """
    is_blank = np.fromiter((not line for line in iterate_lines(path)), dtype=bool)
    documents = np.cumsum(is_blank)
    if len(is_blank) == len(is_empty):
        wrong = np.flatnonzero(is_blank != is_empty)
        if len(wrong):
            raise UserError(
                f"{path}, line {wrong[0] + 1}: this line is blank either here or in {text}, but not in both: give the "
                f"text that {text} was made from"
            )
        if not is_blank.any():
            print(f"warning: {path} has no blank line: the whole text is taken for one document", file=sys.stderr)
        return documents
    if len(is_blank) - is_blank.sum() == len(is_empty):
        return documents[~is_blank]
    raise UserError(
        f"{path} has {len(is_blank) - is_blank.sum()} sentences and {is_blank.sum()} blank lines, but {text} "
        f"has {len(is_empty)} sentences: give the text that {text} was made from"
    )


def find_preceding_sentences(documents: np.ndarray, is_empty: np.ndarray) -> np.ndarray:
    """The row of the preceding sentence in the same document, for each sentence.

    As in fairseq-interactive, an empty line ends a document.

    Args:
        documents: the number of each sentence's document, (sentences,)
        is_empty: which sentences are empty lines, (sentences,) bool

    Returns:
        (sentences,) int64; ``NONE`` for empty lines and for the first sentence of a document
    """
    has_preceding = np.zeros(len(documents), dtype=bool)
    has_preceding[1:] = (documents[1:] == documents[:-1]) & ~is_empty[1:] & ~is_empty[:-1]
    return np.where(has_preceding, np.arange(-1, len(documents) - 1), NONE)
