"""The stream of preceding sentences as an array: for each sentence, the row of the preceding sentence."""

import numpy as np

from fairseq_ctxgates.compat import MMapIndexedDataset
from fairseq_ctxgates.errors import UserError

NONE = -1  # in the place of a row: there is no preceding sentence


def read_preceding(rows: MMapIndexedDataset) -> np.ndarray:
    """The element of each row of a stream, ``NONE`` where the row is empty."""
    preceding = np.full(len(rows), NONE, dtype=np.int64)
    is_preceded = rows.sizes > 0
    # All at once: rows of no more than one element lie one after the other. Row by row takes a minute for ten million.
    elements = np.frombuffer(rows._bin_buffer, dtype=rows._index.dtype, count=int(is_preceded.sum()))
    preceding[is_preceded] = elements
    return preceding


def chain(rows: np.ndarray, context_size: int) -> np.ndarray:
    """For each sentence, the rows of several sentences before it, the nearest first, or ``NONE``, (sentences, context
    size).

    Args:
        rows: the row of the sentence before each, or ``NONE``, (sentences,)
    """
    columns = [rows]
    for _ in range(1, context_size):
        columns.append(np.where(columns[-1] == NONE, NONE, rows[columns[-1]]))
    return np.stack(columns, axis=1)


def places_in_documents(rows: np.ndarray) -> np.ndarray:
    """How many sentences of its document come before each sentence, (sentences,).

    Args:
        rows: the row of the sentence before each, or ``NONE``, (sentences,)
    """
    places = (rows != NONE).astype(np.int64)
    while (rows != NONE).any():  # each round looks twice as far back as the last one
        places += np.where(rows == NONE, 0, places[rows])
        rows = np.where(rows == NONE, NONE, rows[rows])
    return places


def shift(rows: np.ndarray) -> np.ndarray:
    """Give each sentence that has preceding sentences those of another such sentence: of the one that is half of all
    such sentences further on, where the first follows the last. All copies of a sentence that fairseq repeats
    (``--upsample-primary``) count as one.

    Args:
        rows: the rows of the preceding sentences, the nearest first, or ``NONE``, (sentences, N)

    Raises:
        UserError: a sentence would precede itself, because there are so few, or because a stream names sentences that
            do not stand next to those that they precede.
    """
    is_preceded = rows[:, 0] != NONE
    _, first, context_of = np.unique(rows[is_preceded, 0], return_index=True, return_inverse=True)
    contexts = rows[is_preceded][first]
    half = len(contexts) // 2
    if len(contexts) and half <= rows.shape[1]:
        raise UserError(
            f"--preceding-context shifted: {len(contexts)} sentences of a split have preceding sentences; a model that "
            f"reads {rows.shape[1]} needs {2 * rows.shape[1] + 2} such sentences"
        )
    shifted = rows.copy()
    shifted[is_preceded] = np.roll(contexts, -half, axis=0)[context_of]
    precedes_itself = (shifted == np.arange(len(rows))[:, None]).any(axis=1)
    if precedes_itself.any():
        raise UserError(
            f"--preceding-context shifted: sentence {np.argmax(precedes_itself) + 1} would precede itself: this needs "
            f"a stream whose sentences follow those that precede them, as `ctxgates preceding-sentences` writes it"
        )
    return shifted
