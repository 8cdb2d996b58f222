"""The loops over words and pairs of words, compiled by Numba.

All loops are in one file because Numba recompiles a cached function only when the file of this function changes. A loop
in another file would still call the old version of a changed function.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Callable, Tuple

import numpy as np

from fairseq_ctxgates.context_gates.pmi.sparse_counts import PMICounts
from fairseq_ctxgates.data.data_directory import EOS
from fairseq_ctxgates.extras import needs_extra

with needs_extra("gate-labels", "counting pairs of words"):
    import numba

PREFETCHED = 64  # number of contexts that prefetch() reads ahead

# fairseq sets the root logger to INFO; silence Numba.
logging.getLogger("numba").setLevel(logging.WARNING)


def compiled(function: Callable, decorate: Callable = partial(numba.njit, nogil=True)) -> Callable[..., Any]:
    """Compile a function of numbers and arrays, and cache the result on disk if possible.

    The compiled function releases Python's global lock, so that the other threads of a Dask worker can run: those with
    other blocks, and the one that sends the worker's heartbeat to the scheduler.
    """
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
        ``preceding`` (types of all sentences): how many types of the sentence occur before the last occurrence of this
        type (the type itself included when it occurs twice); they are the first types of the sentence in ``types``;
        ``sizes`` (sentences): the number of types in each
    """
    types = np.empty(start[-1] - start[0], np.int32)
    preceding = np.empty(len(types), np.int32)
    sizes = np.empty(len(start) - 1, np.int64)
    place = np.full(vocabulary, -1, np.int64)  # index in `types` where each type was last seen
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
        words (target tokens): the types whose contexts are collected, sentence after sentence
        target_start, source_start (sentences + 1): where the sentences begin
        preceding (target tokens): the length of each word's target context; if empty, the target context is all words
            before it in its sentence
        row_start (types + 1): where the occurrences of each type begin in the result, see :func:`starts`

    Returns:
        (occurrences, 2, 2): begin and end of the context in the source, and in the target; the occurrences of a type
        are in the order of the text
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
def prefetch(contexts: np.ndarray, spans: np.ndarray) -> int:
    """Read the first and the last element of several contexts, so that the processor loads all of them in parallel.

    The contexts of a type are scattered over the text. Loading them one after the other takes longer than counting.

    Returns:
        a meaningless checksum; without it the compiler would remove the reads
    """
    checksum = 0
    for span in range(len(spans)):
        if spans[span, 0] < spans[span, 1]:
            checksum ^= contexts[spans[span, 0]] ^ contexts[spans[span, 1] - 1]
    return checksum


@compiled
def tally_contexts(
    row_start: np.ndarray, spans: np.ndarray, contexts: np.ndarray, width: int, capacity: int, min_count: int
) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """C(y, ·) for consecutive target types y.

    Args:
        row_start (rows + 1): where the occurrences of each y begin in ``spans``
        spans (occurrences, 2): begin and end of the context of each occurrence of y in ``contexts``
        width: the number of context types
        capacity: the maximum number of distinct pairs
        min_count: pairs with a lower count are left out

    Returns:
        ``columns`` and ``counts`` (pairs), row after row; ``sizes`` (rows): the pairs in each row;
        ``column_counts`` (width): the sum of all rows, including the pairs that were left out;
        the checksum of :func:`prefetch`
    """
    columns = np.empty(capacity + 1, contexts.dtype)
    counts = np.empty(capacity, np.uint32)
    sizes = np.empty(len(row_start) - 1, np.int64)
    column_counts = np.zeros(width, np.int64)
    row = np.zeros(width, np.uint32)
    kept = checksum = 0
    for index in range(len(sizes)):
        first = found = kept
        for batch in range(row_start[index], row_start[index + 1], PREFETCHED):
            stop = min(batch + PREFETCHED, row_start[index + 1])
            checksum ^= prefetch(contexts, spans[batch:stop])
            for occurrence in range(batch, stop):
                for position in range(spans[occurrence, 0], spans[occurrence, 1]):
                    context = contexts[position]
                    columns[found] = context  # overwritten unless it is new: a branch would often be mispredicted
                    found += row[context] == 0
                    row[context] += 1
        for place in range(first, found):
            column = columns[place]
            count = row[column]
            row[column] = 0
            column_counts[column] += count
            if count >= min_count:
                columns[kept], counts[kept] = column, count
                kept += 1
        sizes[index] = kept - first
    return columns[:kept], counts[:kept], sizes, column_counts, checksum


@partial(compiled, decorate=numba.vectorize)
def pointwise_mutual_information(
    pair: float, row: float, column: float, total: float, normalized: bool
) -> float:  # equation 6
    """log Z + log C(μ, ν) − log C(μ) − log C(ν), natural logarithm, given C(μ, ν), C(μ), C(ν) and Z.

    The formula has one division, so that equal ratios of counts give equal values: equation 7 compares them with ">".
    Normalized PMI is divided by −log P(μ, ν) (Bouma 2009); it is 1 for words that only occur together.
    """
    value = np.log(total * pair / (row * column))
    if not normalized:
        return value
    return value / -np.log(pair / total) if pair < total else 1.0


@compiled
def fill_pmi_row(row: np.ndarray, word: int, counts: PMICounts, normalized: bool) -> None:
    """Write PMI of a target type with each context type that was seen with it to ``row`` (context types)."""
    for place in range(counts.row_start[word], counts.row_start[word + 1]):
        column = counts.columns[place]
        row[column] = pointwise_mutual_information(
            float(counts.pair_counts[place]),
            float(counts.row_counts[word]),
            float(counts.column_counts[column]),
            float(counts.total[0]),
            normalized,
        )


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
        counts, normalized: attributes of the :class:`PMITable`
        mean: take the mean over the context words that were seen with the word, instead of the maximum over all

    Returns:
        scores (occurrences), −∞ if no word of the context was seen with the word; the checksum of :func:`prefetch`
    """
    scores = np.full(len(spans), -np.inf)
    row = np.full(len(counts.column_counts), -np.inf)  # PMI of one type with every context type
    checksum = 0
    for index in range(len(row_start) - 1):
        word = first + index
        if row_start[index] == row_start[index + 1]:
            continue
        fill_pmi_row(row, word, counts, normalized)
        for batch in range(row_start[index], row_start[index + 1], PREFETCHED):
            stop = min(batch + PREFETCHED, row_start[index + 1])
            checksum ^= prefetch(contexts, spans[batch:stop])
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
    return scores, checksum
