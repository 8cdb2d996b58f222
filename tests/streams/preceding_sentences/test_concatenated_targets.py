"""Preceding translations before the target, and the order in which sentences are then translated."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from fairseq_ctxgates.commands.preceding_sentences import main as preceding_sentences
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_rows import places_in_documents
from tests.helpers.corpus import make_dictionary, write_split
from tests.helpers.models import build_model
from tests.helpers.preceding_sentences import (
    CORPORA,
    Corpus,
    batches,
    make_context_task,
    sentences_of,
    several_predecessors,
    with_eos,
    words,
    write_corpora,
)


def joined_targets(corpus: Corpus, number: int, separator: str, longest: int = 1000) -> List[Tuple[List[str], int]]:
    """The target of each sentence of such a corpus after those of its preceding ones, and where its own begins."""
    rows = []
    for sentence, before in zip(sentences_of(corpus), several_predecessors(corpus, number)):
        own = with_eos(" ".join(sentence.split()[::-1]))
        joined = [word for one in before for word in (*one.split()[::-1], separator)]
        room = longest - len(own)
        kept = joined[-room:] if room > 1 else []
        rows.append(([*kept, *own], len(kept)))
    return rows


@pytest.mark.parametrize("separator, number, longest", [("<sep>", 1, 1000), ("</s>", 3, 1000), ("<sep>", 2, 20)])
@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("left_pad_target", [False, True])
def test_targets_are_joined(
    with_targets: Path, separator: str, number: int, longest: int, split: str, left_pad_target: bool
) -> None:
    """In training all of it is the target; elsewhere the sentence's own, and the decoder reads the rest."""
    options = {"concatenate_preceding": separator, "concatenate_number": number, "concatenate_preceding_target": True}
    task = make_context_task(
        with_targets,
        load_preceding_sentences=False,
        max_target_positions=longest,
        left_pad_target=left_pad_target,
        **options,
    )
    task.load_dataset(split)
    expected = joined_targets(CORPORA[split], number, separator, longest)
    seen = []
    for batch in batches(task, split):
        own_tokens = 0
        for place, row in enumerate(batch["id"].tolist()):
            joined, start = expected[row]
            seen.append(row)
            previous = words(batch["net_input"]["prev_output_tokens"][place], task, left_pad_target)
            assert previous == ["</s>", *joined[:-1]]
            target = [task.target_dictionary[token] for token in batch["target"][place].tolist()]
            own = joined if split == "train" else joined[start:]
            assert [word for word in target if word != "<pad>"] == own
            own_tokens += len(own)
            if split == "train":
                assert "start_indices" not in batch
            else:
                begin = batch["start_indices"][place]
                assert target[begin : begin + len(own)] == own
            before = len(several_predecessors(CORPORA[split], number)[row])
            assert batch["preceding_rows"][place] == list(range(row - before, row))
        assert batch["ntokens"] == own_tokens
    assert sorted(seen) == list(range(len(expected)))
    assert task.dataset(split).sizes[:, 1].tolist() == [len(joined) for joined, _ in expected]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_joined_targets_are_padded_to_a_multiple(with_targets: Path, split: str) -> None:
    options = {"concatenate_preceding": "<sep>", "concatenate_preceding_target": True, "required_seq_len_multiple": 8}
    task = make_context_task(with_targets, load_preceding_sentences=False, **options)
    task.load_dataset(split)
    for batch in batches(task, split):
        assert batch["target"].shape == batch["net_input"]["prev_output_tokens"].shape
        assert batch["target"].size(1) % 8 == 0


@pytest.mark.parametrize("number, target_number", [(0, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_another_number_of_translations_than_of_sentences(
    with_targets: Path, number: int, target_number: int, split: str
) -> None:
    task = make_context_task(
        with_targets,
        load_preceding_sentences=False,
        concatenate_preceding="<sep>",
        concatenate_number=number,
        concatenate_preceding_target=True,
        concatenate_target_number=target_number,
    )
    task.load_dataset(split)
    corpus = CORPORA[split]
    befores = several_predecessors(corpus, 3)
    sources = [
        [*(word for one in before[::-1][:number][::-1] for word in (*one.split(), "<sep>")), *with_eos(sentence)]
        for sentence, before in zip(sentences_of(corpus), befores)
    ]
    targets = [row for row, _ in joined_targets(corpus, target_number, "<sep>")]
    for batch in batches(task, split):
        for place, row in enumerate(batch["id"].tolist()):
            assert words(batch["net_input"]["src_tokens"][place], task, True) == sources[row]
            assert words(batch["net_input"]["prev_output_tokens"][place], task, False) == ["</s>", *targets[row][:-1]]
            before = min(target_number, len(befores[row]))
            assert batch["preceding_rows"][place] == list(range(row - before, row))
    assert task.dataset(split).sizes.tolist() == [[len(one), len(other)] for one, other in zip(sources, targets)]


def test_preceding_targets_that_are_read_but_not_trained_on(with_targets: Path) -> None:
    """``--ignore-preceding-target``: batches of training, but for the targets, which are those of validation."""
    options = {"concatenate_preceding": "<sep>", "concatenate_number": 2, "concatenate_preceding_target": True}
    task, other = (
        make_context_task(with_targets, load_preceding_sentences=False, ignore_preceding_target=ignored, **options)
        for ignored in (True, False)
    )
    expected = joined_targets(CORPORA["train"], 2, "<sep>")
    for one in (task, other):
        one.load_dataset("train")
    for batch, trained_on in zip(batches(task, "train"), batches(other, "train")):
        assert batch["id"].tolist() == trained_on["id"].tolist()
        previous = (each["net_input"]["prev_output_tokens"].tolist() for each in (batch, trained_on))
        assert next(previous) == next(previous)
        own = [expected[row][0][expected[row][1] :] for row in batch["id"].tolist()]
        for target, start, tokens in zip(batch["target"], batch["start_indices"], own):
            assert target[:start].eq(task.target_dictionary.pad()).all()
            assert words(target[start:], task, False) == tokens
        assert batch["ntokens"] == sum(map(len, own)) < trained_on["ntokens"]


def test_as_many_translations_as_sentences_are_drawn(with_targets: Path) -> None:
    """``--sample-context-size`` draws one number for both sides."""
    options = {"concatenate_preceding": "<sep>", "concatenate_number": 3, "concatenate_preceding_target": True}
    task = make_context_task(with_targets, load_preceding_sentences=False, sample_context_size=True, **options)
    task.load_dataset("train")
    numbers = set()
    for batch in batches(task, "train"):
        for source, target in zip(batch["net_input"]["src_tokens"], batch["target"]):
            sources, targets = (
                words(row, task, left).count("<sep>") for row, left in ((source, True), (target, False))
            )
            assert sources == targets
            numbers.add(sources)
    assert numbers == {0, 1, 2, 3}


@pytest.mark.parametrize("limit", [{"max_sentences": 3}, {"max_sentences": None, "max_tokens": 60}, {}], ids=str)
def test_sentences_are_translated_after_those_before_them(with_targets: Path, limit: Dict[str, Any]) -> None:
    """The first ones of all documents, then the second ones, and so on; where nothing is translated as ever."""
    options = {"concatenate_preceding": "<sep>", "concatenate_preceding_target": True, "path": None}
    task = make_context_task(with_targets, load_preceding_sentences=False, **options)
    for split, path in (("valid", "model.pt"), ("valid", None), ("train", None)):
        task.load_dataset(split)
        task.cfg.path = path
        iterator = task.get_batch_iterator(task.dataset(split), seed=1, **{"max_sentences": 8, **limit})
        found = [batch["id"].tolist() for batch in iterator.next_epoch_itr(shuffle=False)]
        places = [place for document in CORPORA[split] for place in range(len(document))]
        order = [places[row] for rows in found for row in rows]
        assert (order == sorted(places)) == (path is not None)
        assert all(len({places[row] for row in rows}) == 1 for rows in found) == (path is not None)


def test_places_in_documents() -> None:
    assert places_in_documents(np.array([-1, 0, 1, -1, 3, 2, 5])).tolist() == [0, 1, 2, 0, 1, 3, 4]
    long = np.arange(-1, 5000)
    assert places_in_documents(long).tolist() == list(range(5001))
    assert places_in_documents(np.array([], dtype=int)).tolist() == []


def test_the_separator_is_a_word_of_both_dictionaries(tmp_path: Path) -> None:
    data = write_corpora(tmp_path, {"train": [["0"]]})
    make_dictionary(["w1 w2"]).save(str(data / "dict.en.txt"))
    write_split(data / "train.de-en.en", ["w1"], make_dictionary(["w1 w2"]))
    named = f"train={data / 'train.docids'}"
    preceding_sentences([str(data), "-s", "de", "-t", "en", "--documents", named])
    options = {"concatenate_preceding": "<sep>", "concatenate_preceding_target": True}
    task = make_context_task(data, load_preceding_sentences=False, **options)
    with pytest.raises(UserError, match="--concatenate-preceding <sep>: the target dictionary does not have this word"):
        task.load_dataset("train")


def test_relations_go_with_targets_that_are_joined_alone(with_targets: Path) -> None:
    """Their positions are those of a sentence, which stays as it is with no preceding sentence before it."""
    options = {"concatenate_preceding": "<sep>", "concatenate_preceding_target": True, "concatenate_target_number": 1}
    for number in (0, 1):
        task = make_context_task(with_targets, load_preceding_sentences=False, concatenate_number=number, **options)
        build_model("fra_transformer", task)
        if number == 0:
            task.streams.check(trains=True)
        else:
            with pytest.raises(
                UserError, match="--concatenate-preceding cannot .* the stream 'relation', whose positions"
            ):
                task.streams.check(trains=True)
