"""The control --preceding-context shifted: the preceding sentences of another sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_rows import shift
from tests.helpers.preceding_sentences import (
    CORPORA,
    NULL,
    batches,
    make_context_task,
    make_task_of_a_model,
    sentences_of,
    several_predecessors,
    sources_of,
    with_eos,
)


def test_contexts_shifted_by_hand() -> None:
    """Half of the sentences that have any further on, around the end; the first of a document has none still."""
    rows = np.array([[-1], [0], [1], [-1], [3], [4], [5]])
    assert shift(rows).ravel().tolist() == [-1, 3, 4, -1, 5, 0, 1]
    assert shift(np.array([[-1], [-1]])).ravel().tolist() == [-1, -1]
    assert shift(np.zeros((0, 1), dtype=int)).tolist() == []
    with pytest.raises(
        UserError, match="5 sentences of a split have preceding sentences; a model .* 2 needs 6 such sentences"
    ):
        shift(np.concatenate([rows, rows], axis=1))


def test_no_sentence_is_its_own_context() -> None:
    """A stream of one's own may name any sentence before a sentence."""
    interleaved = np.array([[-1], [-1], [0], [1], [2], [3]])
    with pytest.raises(
        UserError, match="--preceding-context shifted: sentence 3 would precede itself: .*a stream whose"
    ):
        shift(interleaved)


def test_copies_of_a_sentence_have_the_same_context() -> None:
    """fairseq repeats the first of several splits; half of all rows would be the same sentence in another copy."""
    rows = np.array([[-1], [0], [1], [-1], [3], [4], [5]])
    other = np.array([[-1], [7]])
    copied = shift(np.concatenate([rows, rows, other])).ravel().tolist()
    assert copied == [-1, 4, 5, -1, 7, 0, 1] * 2 + [-1, 3]


@pytest.mark.parametrize("kind", ["gate", "concatenation"])
def test_shifted_contexts(with_targets: Path, kind: str) -> None:
    """What a sentence has before it, and the sizes by which batches are made, are another's."""
    if kind == "gate":
        task = make_task_of_a_model(with_targets, 2, preceding_context="shifted")
    else:
        given = {"concatenate_preceding": "<sep>", "concatenate_number": 2, "concatenate_preceding_target": True}
        task = make_context_task(with_targets, load_preceding_sentences=False, preceding_context="shifted", **given)
    task.load_dataset("valid")
    corpus = CORPORA["valid"]
    befores = several_predecessors(corpus, 2)
    preceded = [number for number, before in enumerate(befores) if before]
    half = len(preceded) // 2
    contexts = {number: befores[preceded[(place + half) % len(preceded)]] for place, number in enumerate(preceded)}
    dataset = task.dataset("valid")
    found = sources_of(batches(task, "valid"), task, "preceding_tokens" if kind == "gate" else "src_tokens")
    for number, sentence in enumerate(sentences_of(corpus)):
        context = contexts.get(number, [])
        if kind == "gate":
            assert found[number] == ([word for one in context for word in with_eos(one)] or NULL)
        else:
            joined = [word for one in context for word in (*one.split(), "<sep>")]
            assert found[number] == [*joined, *with_eos(sentence)]
            assert dataset.sizes[number].tolist() == [len(found[number])] * 2  # a target is its source in reverse
    assert contexts[preceded[0]] != befores[preceded[0]]
