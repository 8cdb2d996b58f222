"""What is changed at random in training: words that drop out, and how many sentences are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from tests.helpers.preceding_sentences import (
    CORPORA,
    NULL,
    Corpus,
    batches,
    check_corpus,
    concatenated,
    make_context_task,
    make_task_of_a_model,
    predecessors,
    sentences_of,
    several_predecessors,
    sources_of,
    with_eos,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["gate", "concatenation"])
def test_words_drop_out_of_the_source_alone(varied: Tuple[Path, Corpus], kind: str) -> None:
    """A quarter of the words is unknown, others in each epoch; no end of sentence, separator or preceding word is."""
    given: Dict[str, Any] = {"load_preceding_sentences": kind == "gate", "coword_dropout": 0.25}
    if kind == "concatenation":
        given["concatenate_preceding"] = "<sep>"
    task = make_context_task(varied[0], **given)
    task.load_dataset("train")
    dropped = 0
    first = sources_of(batches(task, "train", epoch=1), task)
    for number, (sentence, before) in enumerate(zip(sentences_of(varied[1]), predecessors(varied[1]))):
        whole = with_eos(sentence) if kind == "gate" else concatenated(sentence, before)
        own = len(whole) - len(with_eos(sentence))
        assert len(first[number]) == len(whole) and first[number][:own] == whole[:own]
        changed = [place for place, (a, b) in enumerate(zip(first[number], whole)) if a != b]
        assert {first[number][place] for place in changed} <= {"<unk>"} and len(whole) - 1 not in changed
        dropped += len(changed)
    words_in_all = sum(len(sentence.split()) for sentence in sentences_of(varied[1]))
    assert dropped / words_in_all == pytest.approx(0.25, abs=0.01)
    again = sources_of(batches(task, "train", epoch=1), task)
    assert {number for number in first if again[number] != first[number]} == set(), "a resumed training draws the same"
    second = sources_of(batches(task, "train", epoch=2), task)
    assert sum(first[number] != second[number] for number in first) > len(first) / 2
    if kind == "gate":
        read = sources_of(batches(task, "train"), task, "preceding_tokens")
        expected = [with_eos(one) if one else NULL for one in predecessors(varied[1])]
        assert {number for number, one in enumerate(expected) if read[number] != one} == set()


def test_words_drop_out_in_training_alone(data: Path) -> None:
    task = make_context_task(data, coword_dropout=0.9, sample_context_size=True)
    for split in ("valid", "train"):
        task.load_dataset(split)
    check_corpus(task, batches(task, "valid"), CORPORA["valid"])
    assert any("<unk>" in source for source in sources_of(batches(task, "train"), task).values())
    other_seed = make_context_task(data, coword_dropout=0.9, seed=2)
    other_seed.load_dataset("train")
    pair = [sources_of(batches(one, "train"), one) for one in (task, other_seed)]
    assert pair[0] != pair[1]


def test_words_drop_out_whatever_number_of_sentences_is_read(varied: Tuple[Path, Corpus]) -> None:
    """Also the first word of a sentence, whose number of preceding sentences is drawn from the same numbers."""
    task = make_task_of_a_model(varied[0], 2, sample_context_size=True, coword_dropout=0.25)
    task.load_dataset("train")
    texts, befores = sentences_of(varied[1]), several_predecessors(varied[1], 2)
    dropped: Dict[int, List[bool]] = {0: [], 1: [], 2: []}
    for epoch in range(1, 7):
        found = batches(task, "train", epoch=epoch)
        sources, read = sources_of(found, task), sources_of(found, task, "preceding_tokens")
        for number, before in enumerate(befores):
            if len(before) == 2 and texts[number]:
                sizes = [len(NULL), *(sum(len(with_eos(one)) for one in before[-n:]) for n in (1, 2))]
                if len(set(sizes)) == 3:
                    dropped[sizes.index(len(read[number]))].append(sources[number][0] == "<unk>")
    for drops in dropped.values():
        assert len(drops) > 300
        assert np.mean(drops) == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("kind", ["gate", "concatenation"])
def test_a_random_number_of_preceding_sentences(varied: Tuple[Path, Corpus], kind: str) -> None:
    """From none to two, each as often, and always the nearest; where there is one alone, two is this one."""
    if kind == "gate":
        task = make_task_of_a_model(varied[0], 2, sample_context_size=True)
    else:
        given = {"concatenate_preceding": "<sep>", "concatenate_number": 2, "sample_context_size": True}
        task = make_context_task(varied[0], load_preceding_sentences=False, **given)
    task.load_dataset("train")
    name = "preceding_tokens" if kind == "gate" else "src_tokens"
    found = sources_of(batches(task, "train"), task, name)
    numbers: Dict[int, List[int]] = {0: [], 1: [], 2: []}
    for number, (sentence, before) in enumerate(zip(sentences_of(varied[1]), several_predecessors(varied[1], 2))):
        if kind == "gate":
            possible = [NULL, *([word for one in before[-n:] for word in with_eos(one)] for n in (1, 2))]
        else:
            joined = [[*(w for one in before[len(before) - n :] for w in (*one.split(), "<sep>"))] for n in (0, 1, 2)]
            possible = [[*one, *with_eos(sentence)] for one in joined[: 1 + len(before)]]
        assert found[number] in possible[: 1 + len(before)]
        numbers[len(before)].append(possible.index(found[number]))
    assert np.bincount(numbers[2]) / len(numbers[2]) == pytest.approx([1 / 3] * 3, abs=0.05)
    assert np.bincount(numbers[1]) / len(numbers[1]) == pytest.approx([1 / 3, 2 / 3], abs=0.1)
