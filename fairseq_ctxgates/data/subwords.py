"""Joins subwords to words, in text and in rows of tokens, for the values of fairseq's ``--remove-bpe``."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List, Sequence, Tuple

from fairseq.data import Dictionary, data_utils

from fairseq_ctxgates.errors import UserError

JOINABLE = ("subword_nmt", "sentencepiece", "wordpiece", "letter", "_EOW", "none")  # of join_subwords
GROUPABLE = ("subword_nmt", "sentencepiece", "none")  # of group_subwords
SUBWORD_MARK = "@@"  # subword-nmt: the word continues in the next token
WORD_START = "\u2581"  # sentencepiece: a word starts here
WORD_MARKS = {"sentencepiece": WORD_START, "wordpiece": "_", "letter": "|", "_EOW": "_EOW"}
# A dictionary holds a kind of subwords if more than this share of its types has the kind's mark. Without spaces between
# words, few types of sentencepiece have it, 0.07 in Chinese; and a text of words may have a stray mark.
MARKED_SHARE = 0.01

Pieces = List[Tuple[str, int]]  # the text, without marks, and the position of each token of a word


def check_subwords(dictionary: Dictionary, path: Path, remove_bpe: str, needs_marks: bool = True) -> None:
    """Raise UserError if the types of a dictionary contradict ``--remove-bpe``.

    Args:
        needs_marks: sentencepiece needs a type with its mark, without which :func:`group_subwords` takes a whole
            sentence for one word; :func:`join_subwords` does not
    """
    marked = {
        "sentencepiece": sum(symbol.startswith(WORD_START) for symbol in dictionary.symbols),
        "subword_nmt": sum(symbol.endswith(SUBWORD_MARK) for symbol in dictionary.symbols),
    }
    held = max(marked, key=lambda kind: marked[kind])
    if remove_bpe != held and marked[held] > MARKED_SHARE * len(dictionary):
        raise UserError(f"{path} holds the subwords of {held}: give --remove-bpe {held}")
    if remove_bpe == "sentencepiece" and needs_marks and not marked["sentencepiece"]:
        raise UserError(
            f"{path} holds no subwords of sentencepiece (no type begins with {WORD_START}): leave out --remove-bpe "
            f"sentencepiece"
        )


def join_subwords(lines: Sequence[str], remove_bpe: str) -> List[str]:
    """The lines with their subwords joined to words; ``remove_bpe`` is one of ``JOINABLE``. A line without a word mark
    is plain text already; fairseq would remove its spaces."""
    mark = WORD_MARKS.get(remove_bpe, "")
    return [data_utils.post_process(line, remove_bpe) if mark in line else line for line in lines]


def group_subwords(tokens: Sequence[str], remove_bpe: str) -> Iterator[Pieces]:
    """The words of a row of tokens; a word is a list of (text, position), one for each of its tokens. ``remove_bpe``
    is one of ``GROUPABLE``."""
    split = {"subword_nmt": _split_subword_nmt, "sentencepiece": _split_sentencepiece, "none": _split_none}
    return split[remove_bpe](tokens)


def _split_subword_nmt(tokens: Sequence[str]) -> Iterator[Pieces]:
    pieces: Pieces = []
    for position, token in enumerate(tokens):
        continues = token.endswith(SUBWORD_MARK)
        pieces.append((token[: -len(SUBWORD_MARK)] if continues else token, position))
        if not continues:
            yield pieces
            pieces = []
    if pieces:
        yield pieces


def _split_sentencepiece(tokens: Sequence[str]) -> Iterator[Pieces]:
    """A token may contain the pieces of several words; it then belongs to each of these words."""
    pieces: Pieces = []
    for position, token in enumerate(tokens):
        rest, *starts = token.split(WORD_START)
        if rest:
            pieces.append((rest, position))
        for text in starts:
            if any(piece for piece, _ in pieces):
                yield pieces
                pieces = []
            pieces.append((text, position))
    if any(piece for piece, _ in pieces):
        yield pieces


def _split_none(tokens: Sequence[str]) -> Iterator[Pieces]:
    return ([(token, position)] for position, token in enumerate(tokens))
