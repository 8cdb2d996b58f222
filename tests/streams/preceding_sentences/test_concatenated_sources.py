"""The concatenation baseline: preceding sentences before the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest

from fairseq_ctxgates.errors import UserError
from tests.helpers.preceding_sentences import (
    CORPORA,
    LINES,
    LINES_BEFORE,
    Corpus,
    batches,
    concatenated,
    interact,
    make_context_task,
    of_lengths,
    predecessors,
    sentences_of,
    several_predecessors,
    with_eos,
    words,
    write_corpora,
)


def check_concatenated(
    task: Any, dataset: Any, found: Sequence[Dict[str, Any]], corpus: Corpus, **options: Any
) -> List[List[str]]:
    """Every row came once and is joined as it should be, and its size is what the dataset says. Returns the rows."""
    rows = [concatenated(*pair, **options) for pair in zip(sentences_of(corpus), predecessors(corpus))]
    assert sorted(number for batch in found for number in batch["id"].tolist()) == list(range(len(rows)))
    for batch in found:
        assert "preceding_tokens" not in batch["net_input"]
        for number, source, length in zip(
            batch["id"].tolist(), batch["net_input"]["src_tokens"], batch["net_input"]["src_lengths"]
        ):
            assert words(source, task, task.cfg.left_pad_source) == rows[number]
            assert length == len(rows[number])
    sizes = [len(row) for row in rows]
    assert dataset.sizes[:, 0].tolist() == sizes
    assert [dataset.size(number)[0] for number in range(len(rows))] == sizes
    assert dataset.num_tokens_vec(np.arange(len(rows))).tolist() == [max(size, 3) for size in sizes]
    return rows


@pytest.mark.parametrize("separator", ["<sep>", "</s>", "w7"])
@pytest.mark.parametrize("left_pad_source", [True, False])
def test_preceding_sentences_stand_before_each_source(data: Path, separator: str, left_pad_source: bool) -> None:
    options = {"load_preceding_sentences": False, "left_pad_source": left_pad_source}
    task = make_context_task(data, concatenate_preceding=separator, **options)
    task.load_dataset("train")
    found = batches(task, "train")
    check_concatenated(task, task.dataset("train"), found, CORPORA["train"], separator=separator)


@pytest.mark.parametrize("longest", [17, 18, 20])
def test_what_is_too_long_is_cut_at_its_beginning(data: Path, longest: int) -> None:
    """Some sentences are cut, for some nothing is left, and every sentence itself is whole."""
    task = make_context_task(
        data, load_preceding_sentences=False, concatenate_preceding="<sep>", max_source_positions=longest
    )
    task.load_dataset("train")
    rows = check_concatenated(task, task.dataset("train"), batches(task, "train"), CORPORA["train"], longest=longest)
    whole = [concatenated(*pair) for pair in zip(sentences_of(CORPORA["train"]), predecessors(CORPORA["train"]))]
    assert max(map(len, rows)) <= longest
    assert any(len(row) < len(other) and "<sep>" in row for row, other in zip(rows, whole))
    if longest == 17:
        assert any("<sep>" in other and "<sep>" not in row for row, other in zip(rows, whole))


@pytest.mark.parametrize("separator, longest", [("<sep>", 1000), ("</s>", 1000), ("<sep>", 20)])
def test_several_concatenated_sentences(data: Path, separator: str, longest: int) -> None:
    """Each with the separator; what there is no room for is cut at the beginning of all."""
    options = {"concatenate_preceding": separator, "concatenate_number": 3, "max_source_positions": longest}
    task = make_context_task(data, load_preceding_sentences=False, **options)
    task.load_dataset("train")
    expected = []
    for sentence, before in zip(sentences_of(CORPORA["train"]), several_predecessors(CORPORA["train"], 3)):
        joined = [word for one in before for word in (*one.split(), separator)]
        room = longest - len(with_eos(sentence))
        expected.append([*(joined[-room:] if room > 1 else []), *with_eos(sentence)])
    for batch in batches(task, "train"):
        for number, source in zip(batch["id"].tolist(), batch["net_input"]["src_tokens"]):
            assert words(source, task, True) == expected[number]
    assert task.dataset("train").sizes[:, 0].tolist() == list(map(len, expected))


def test_concatenated_shards(data: Path) -> None:
    task = make_context_task(data, load_preceding_sentences=False, concatenate_preceding="<sep>", upsample_primary=2)
    task.load_dataset("train", combine=True)
    corpus = CORPORA["train"] * 2 + CORPORA["train1"]
    check_concatenated(task, task.dataset("train"), batches(task, "train"), corpus)


def test_max_tokens_counts_what_is_concatenated(varied: Tuple[Path, Corpus]) -> None:
    task = make_context_task(varied[0], load_preceding_sentences=False, concatenate_preceding="<sep>")
    task.load_dataset("train")
    found = batches(task, "train", max_sentences=None, max_tokens=1000)
    check_concatenated(task, task.dataset("train"), found, varied[1])
    assert 900 < max(batch["net_input"]["src_tokens"].numel() for batch in found) <= 1000


def test_concatenation_drops_nothing_at_test_time(tmp_path: Path) -> None:
    """However long the preceding sentence, it is cut to the positions that the model has."""
    corpus = [[" ".join(["w3"] * 30), "0 1", "0 2"], ["0 3"]]
    data = write_corpora(tmp_path, {"train": [["0"]], "test": corpus})
    task = make_context_task(
        data, load_preceding_sentences=False, concatenate_preceding="<sep>", max_source_positions=31
    )
    task.load_dataset("test")
    found = batches(task, "test", max_sentences=None, max_tokens=31, max_positions=(31, 31))
    check_concatenated(task, task.dataset("test"), found, corpus, longest=31)


def test_conditions_go_with_concatenation(tmp_path: Path) -> None:
    """They are asked of the sentences, not of what is joined from them."""
    data = write_corpora(tmp_path, {"train": of_lengths([4, 8, 9, 4], [7])})
    options = {"concatenate_preceding": "<sep>", "preceding_length_ratio": 2.0, "preceding_max_length": 8}
    task = make_context_task(data, load_preceding_sentences=False, **options)
    task.load_dataset("train")
    assert sorted(number for batch in batches(task, "train") for number in batch["id"].tolist()) == [0, 1, 4]


def test_concatenation_at_generation_as_in_training(data: Path) -> None:
    """fairseq hands the task what a checkpoint keeps of the task that it was trained with."""
    trained_with = make_context_task(data, load_preceding_sentences=False, concatenate_preceding="<sep>")
    task = make_context_task(data, load_preceding_sentences=False)
    task.load_state_dict(trained_with.state_dict())
    task.load_dataset("valid")
    check_concatenated(task, task.dataset("valid"), batches(task, "valid"), CORPORA["valid"])


@pytest.mark.parametrize("buffer_size", [1, 3, 100])
def test_concatenated_lines_of_interactive(data: Path, buffer_size: int) -> None:
    task = make_context_task(data, load_preceding_sentences=False, concatenate_preceding="<sep>")
    found = {}
    for batch in interact(task, LINES, buffer_size):
        assert set(batch["net_input"]) == {"src_tokens", "src_lengths"}
        for number, source in zip(batch["id"].tolist(), batch["net_input"]["src_tokens"]):
            found[number] = words(source, task, True)
    assert found == {number: concatenated(*pair) for number, pair in enumerate(zip(LINES, LINES_BEFORE))}


def test_a_separator_that_is_no_word(data: Path) -> None:
    task = make_context_task(data, load_preceding_sentences=False, concatenate_preceding="<break>")
    with pytest.raises(UserError, match="--concatenate-preceding <break>: the source dictionary.*</s>"):
        task.load_dataset("train")
    for symbol in ("<s>", "<pad>", "<unk>"):
        task = make_context_task(data, load_preceding_sentences=False, concatenate_preceding=symbol)
        with pytest.raises(UserError, match=f"--concatenate-preceding {symbol}: this symbol is fairseq's own"):
            task.load_dataset("train")
