"""The loops over words and pairs of words, compiled by Numba.

They stand in one file because Numba keeps compiled functions until *their* file changes: a loop in another file
would go on with the old version of what it calls.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Tuple

import numba
import numpy as np
from fairseq.data import Dictionary

if TYPE_CHECKING:
    from fairseq_ctxgates.context_gates.pmi.table import PMICounts

EOS = Dictionary().eos()
FETCHED = 64  # contexts that are read ahead, see fetch()

# fairseq makes every logger speak of everything, and Numba has much to say.
logging.getLogger("numba").setLevel(logging.WARNING)


def compiled(function: Callable, decorate: Callable = partial(numba.njit, nogil=True)) -> Any:
    """Compile a function of numbers and arrays, and keep the result on disk where there is a place for it. Other
    threads run beside it: a Dask worker's other blocks, and the one that tells the scheduler that it lives."""
    try:
        return decorate(cache=True)(function)
    except RuntimeError:  # the package and the home directory are both read-only
        return decorate(function)


@compiled
def types_of_sentences(
    ids: np.ndarray, start: np.ndarray, vocabulary: int
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The types of each sentence in the order in which they first occur, without end of sentence.

    Returns:
        ``types`` (types of all sentences);
        ``preceding``, of the same length: how many types of its sentence, which are the first ones in ``types``, stand
        somewhere before the type's last occurrence (itself included when it occurs twice);
        ``sizes`` (sentences): the number of types in each
    """
    types = np.empty(start[-1] - start[0], np.int32)
    preceding = np.empty(len(types), np.int32)
    sizes = np.empty(len(start) - 1, np.int64)
    place = np.full(vocabulary, -1, np.int64)  # of each type in `types`, in the sentence where it was last seen
    found = 0
    for sentence in range(len(sizes)):
        first = found
        for position in range(start[sentence], start[sentence + 1]):
            word = ids[position]
            if word == EOS:
                continue
            if place[word] < first:
                place[word], types[found] = found, word
                preceding[found] = found - first
                found += 1
            else:
                preceding[place[word]] = found - first
        sizes[sentence] = found - first
    return types[:found], preceding[:found], sizes


@compiled
def group_contexts(
    words: np.ndarray,
    target_start: np.ndarray,
    source_start: np.ndarray,
    preceding: np.ndarray,
    first: int,
    row_start: np.ndarray,
) -> np.ndarray:
    """The contexts of every occurrence of the types from ``first`` on, grouped by type (a counting sort).

    Args:
        words (target tokens): the types whose contexts are wanted, sentence after sentence
        target_start, source_start (sentences + 1): where the sentences begin
        preceding (target tokens): the length of each word's target context; when empty, all that stand
            before it in its sentence
        row_start (types + 1): where the occurrences of each type shall begin in the result, see :func:`starts`

    Returns:
        (occurrences, 2, 2): begin and end of the context in the source, and in the target; in the order of the text
        within a type
    """
    last = first + len(row_start) - 1
    following = row_start.copy()
    spans = np.empty((row_start[-1], 2, 2), np.int64)
    for sentence in range(len(target_start) - 1):
        begin = target_start[sentence]
        for position in range(begin, target_start[sentence + 1]):
            word = words[position]
            if first <= word < last:
                span = spans[following[word - first]]
                following[word - first] += 1
                span[0, 0], span[0, 1] = source_start[sentence], source_start[sentence + 1]
                span[1, 0], span[1, 1] = begin, begin + preceding[position] if len(preceding) else position
    return spans


@compiled
def fetch(contexts: np.ndarray, spans: np.ndarray) -> int:
    """Read the first and the last element of some contexts, so that all are on their way from memory together.

    The contexts of a type lie scattered over the text. Waiting for them one by one takes longer than counting them.

    Returns:
        nothing of interest, but were it not returned and used, the compiler would leave out the reading
    """
    mixed = 0
    for span in range(len(spans)):
        if spans[span, 0] < spans[span, 1]:
            mixed ^= contexts[spans[span, 0]] ^ contexts[spans[span, 1] - 1]
    return mixed


@compiled
def tally_contexts(
    row_start: np.ndarray, spans: np.ndarray, contexts: np.ndarray, width: int, capacity: int, least: int
) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """C(y, ·) for consecutive target types y.

    Args:
        row_start (rows + 1): where the occurrences of each y begin in ``spans``
        spans (occurrences, 2): begin and end, in ``contexts``, of the types that y is found with there
        width: the number of context types
        capacity: the number of distinct pairs at most
        least: pairs that are counted less often are left out

    Returns:
        ``columns`` and ``counts`` (pairs), row after row; ``sizes`` (rows): the pairs in each row;
        ``column_counts`` (width): the sum of all rows, pairs that were left out included;
        what :func:`fetch` returned
    """
    columns = np.empty(capacity + 1, contexts.dtype)
    counts = np.empty(capacity, np.uint32)
    sizes = np.empty(len(row_start) - 1, np.int64)
    column_counts = np.zeros(width, np.int64)
    row = np.zeros(width, np.uint32)
    kept = mixed = 0
    for number in range(len(sizes)):
        first = found = kept
        for batch in range(row_start[number], row_start[number + 1], FETCHED):
            stop = min(batch + FETCHED, row_start[number + 1])
            mixed ^= fetch(contexts, spans[batch:stop])
            for occurrence in range(batch, stop):
                for position in range(spans[occurrence, 0], spans[occurrence, 1]):
                    context = contexts[position]
                    columns[found] = context  # kept if it is new; a branch would often be predicted wrongly
                    found += row[context] == 0
                    row[context] += 1
        for place in range(first, found):
            column = columns[place]
            count = row[column]
            row[column] = 0
            column_counts[column] += count
            if count >= least:
                columns[kept], counts[kept] = column, count
                kept += 1
        sizes[number] = kept - first
    return columns[:kept], counts[:kept], sizes, column_counts, mixed


@partial(compiled, decorate=numba.vectorize)
def pointwise_mutual_information(
    pair: float, row: float, column: float, total: float, normalized: bool
) -> float:  # equation 6
    """log Z + log C(μ, ν) − log C(μ) − log C(ν), natural logarithm, given C(μ, ν), C(μ), C(ν) and Z.

    Written with one division, so that equal ratios of counts give equal numbers: equation 7 compares them with ">".
    Normalized by −log P(μ, ν) (Bouma 2009): 1 for words that are only ever found together.
    """
    value = np.log(total * pair / (row * column))
    if not normalized:
        return value
    return value / -np.log(pair / total) if pair < total else 1.0


@compiled
def find_pairs(words: np.ndarray, contexts: np.ndarray, counts: PMICounts) -> np.ndarray:
    """The place of each pair in ``counts.columns``, -1 for a pair that is not there."""
    places = np.full(len(words), -1, np.int64)
    for number in range(len(words)):
        for place in range(counts.row_start[words[number]], counts.row_start[words[number] + 1]):
            if counts.columns[place] == contexts[number]:
                places[number] = place
                break
    return places


@compiled
def score_contexts(
    first: int,
    row_start: np.ndarray,
    spans: np.ndarray,
    contexts: np.ndarray,
    counts: PMICounts,
    normalized: bool,
    mean: bool,
) -> Tuple[np.ndarray, int]:
    """PMI of words with their contexts, for the types from ``first`` on.

    Args:
        row_start (types + 1): where the occurrences of each type begin in ``spans``
        spans (occurrences, 2): begin and end of each occurrence's context in ``contexts``
        counts, normalized: of the :class:`PMITable`
        mean: take the mean over the words of the context that the table has, instead of the maximum over all

    Returns:
        scores (occurrences), −∞ where the table has no word of the context; what :func:`fetch` returned
    """
    scores = np.full(len(spans), -np.inf)
    row = np.full(len(counts.column_counts), -np.inf)  # PMI of one type with every context type
    mixed, total = 0, float(counts.total[0])
    for number in range(len(row_start) - 1):
        word = first + number
        if row_start[number] == row_start[number + 1]:
            continue
        for place in range(counts.row_start[word], counts.row_start[word + 1]):
            column = counts.columns[place]
            row[column] = pointwise_mutual_information(
                float(counts.pair_counts[place]),
                float(counts.row_counts[word]),
                float(counts.column_counts[column]),
                total,
                normalized,
            )
        for batch in range(row_start[number], row_start[number + 1], FETCHED):
            stop = min(batch + FETCHED, row_start[number + 1])
            mixed ^= fetch(contexts, spans[batch:stop])
            for occurrence in range(batch, stop):
                best, summed, seen = -np.inf, 0.0, 0
                for position in range(spans[occurrence, 0], spans[occurrence, 1]):
                    value = row[contexts[position]]
                    best = max(best, value)
                    if mean and value > -np.inf:
                        summed += value
                        seen += 1
                scores[occurrence] = summed / seen if seen > 0 else best
        for place in range(counts.row_start[word], counts.row_start[word + 1]):
            row[counts.columns[place]] = -np.inf
    return scores, mixed
