"""Preceding sentences: every row of every batch has its own, as text, in whatever order and company it comes."""

from __future__ import annotations

import gc
import random
import shutil
import weakref
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import pytest
import torch
from fairseq.data import FairseqDataset
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_ctxgates.commands.preceding_sentences import main as preceding_sentences
from fairseq_ctxgates.data.data_directory import Split, fingerprint
from fairseq_ctxgates.data.side_stream_writer import write_side_stream
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.preceding_sentences import PrecedingSentences, places_in_documents, shift
from tests.helpers.corpus import binarize, make_dictionary, write_split
from tests.helpers.fairseq_commands import setup_task
from tests.helpers.models import build_model, make_task

# A document is a list of sentences, a corpus a list of documents. A sentence begins with its number, digit by digit.
Corpus = List[List[str]]
WORDS = [*map(str, range(10)), *(f"w{number}" for number in range(20)), "<sep>"]
DICTIONARY = make_dictionary([" ".join(WORDS)])
NULL = ["</s>"] * 3


def make_corpus(documents: Sequence[int], seed: int, first: int = 0, longest: int = 12) -> Corpus:
    """Documents of these numbers of sentences, no two of which are alike: four digits and up to ``longest`` words."""
    rng = random.Random(seed)
    numbers = iter(range(first, first + sum(documents)))

    def sentence() -> str:
        return " ".join([*f"{next(numbers):04d}", *rng.choices(WORDS[10:30], k=rng.randint(0, longest))])

    return [[sentence() for _ in range(number)] for number in documents]


def sentences_of(corpus: Corpus) -> List[str]:
    return [sentence for document in corpus for sentence in document]


def predecessors(corpus: Corpus) -> List[Optional[str]]:
    """The sentence before each of a corpus, None for the first of a document; an empty sentence ends a document."""
    pairs = [pair for document in corpus for pair in zip(["", *document], document)]
    return [before if before and sentence else None for before, sentence in pairs]


CORPORA = {
    "train": make_corpus([1, 5, 3, 1, 12, 2, 30, 6], seed=1),
    "train1": make_corpus([4, 1, 7], seed=2, first=1000),
    "valid": make_corpus([6, 1, 4], seed=3, first=2000),
}


def several_predecessors(corpus: Corpus, number: int) -> List[List[str]]:
    """Up to so many sentences before each of a corpus, the nearest last; an empty one ends a document."""
    found = []
    for document in corpus:
        for place, sentence in enumerate(document):
            before = [] if not sentence else document[max(place - number, 0) : place]
            found.append(before[len(before) - before[::-1].index("") :] if "" in before else before)
    return found


def write_corpora(folder: Path, corpora: Dict[str, Corpus], targets: Optional[Dict[str, List[str]]] = None) -> Path:
    """A data directory with the preceding sentences of every split; targets are "w1 w2" unless given."""
    folder.mkdir(exist_ok=True)
    for lang in ("de", "en"):
        DICTIONARY.save(str(folder / f"dict.{lang}.txt"))
    named = []
    for name, corpus in corpora.items():
        sentences = sentences_of(corpus)
        write_split(folder / f"{name}.de-en.de", sentences, DICTIONARY)
        write_split(folder / f"{name}.de-en.en", (targets or {}).get(name) or ["w1 w2"] * len(sentences), DICTIONARY)
        path = folder / f"{name}.docids"
        path.write_text("".join(f"{number}\n" for number, document in enumerate(corpus) for _ in document))
        named.append(f"{name}={path}")
    preceding_sentences([str(folder), "-s", "de", "-t", "en", "--documents", *named])
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with train, train1 and valid. Not to be changed."""
    return write_corpora(tmp_path_factory.mktemp("documents"), CORPORA)


def make_context_task(data: Any, **options: Any) -> Any:
    return setup_task(data, **{"load_gate_labels": False, "load_preceding_sentences": True, **options})


def batches(task: Any, split: str, epoch: int = 1, **options: Any) -> List[Dict[str, Any]]:
    """A shuffled epoch of a split, as fairseq-train iterates over it."""
    options = {"max_sentences": 8, "seed": 1, **options}
    return list(task.get_batch_iterator(task.dataset(split), epoch=epoch, **options).next_epoch_itr(shuffle=True))


def words(row: Tensor, task: Any, left_pad: bool) -> List[str]:
    """The tokens of a row as text, after a look at where its padding is."""
    text = [task.source_dictionary[token] for token in row.tolist()]
    content = [word for word in text if word != "<pad>"]
    padding = ["<pad>"] * (len(text) - len(content))
    assert text == (padding + content if left_pad else content + padding)
    return content


def with_eos(sentence: str, longest: int = 1000) -> List[str]:
    """The words of a sentence with its end, cut to a length at which the end stays."""
    return [*sentence.split()[: longest - 1], "</s>"]


def check(
    task: Any,
    found: Sequence[Dict[str, Any]],
    sentences: Sequence[str],
    preceding: Sequence[Optional[str]],
    left_pad: bool = True,
    longest: int = 1000,
) -> List[int]:
    """Every row of these batches has its own source and preceding sentence. Returns the rows, sorted."""
    numbers = []
    for batch in found:
        net_input = batch["net_input"]
        assert net_input["preceding_tokens"].size(0) == len(batch["id"])
        for number, source, before in zip(batch["id"].tolist(), net_input["src_tokens"], net_input["preceding_tokens"]):
            assert words(source, task, left_pad) == with_eos(sentences[number], longest)
            expected = preceding[number]
            assert words(before, task, left_pad) == (NULL if expected is None else with_eos(expected, longest))
            numbers.append(number)
    return sorted(numbers)


def check_corpus(task: Any, found: Sequence[Dict[str, Any]], corpus: Corpus, **options: Any) -> None:
    """The same, and every sentence came exactly once."""
    sentences = sentences_of(corpus)
    assert check(task, found, sentences, predecessors(corpus), **options) == list(range(len(sentences)))


# The right sentence in every row


@pytest.mark.parametrize(
    "options", [{}, {"left_pad_source": False}, {"required_seq_len_multiple": 8}], ids=lambda options: " ".join(options)
)
@pytest.mark.parametrize("limit", [{}, {"max_sentences": None, "max_tokens": 120}, {"max_sentences": 1}], ids=str)
def test_shuffled_batches(data: Path, options: Dict[str, Any], limit: Dict[str, Any]) -> None:
    task = make_context_task(data, **options)
    task.load_dataset("train")
    found = batches(task, "train", **limit)
    assert [batch["id"].tolist() for batch in found] != sorted(batch["id"].tolist() for batch in found)
    check_corpus(task, found, CORPORA["train"], left_pad=options.get("left_pad_source", True))


@pytest.mark.parametrize("longest", [3, 9])
def test_truncated_sources(data: Path, longest: int) -> None:
    task = make_context_task(data, truncate_source=True, max_source_positions=longest)
    task.load_dataset("train")
    found = batches(task, "train")
    check_corpus(task, found, CORPORA["train"], longest=longest)
    for name in ("src_tokens", "preceding_tokens"):
        assert max(batch["net_input"][name].size(1) for batch in found) == longest


def test_a_long_preceding_sentence_is_cut_at_its_beginning(data: Path) -> None:
    task = make_context_task(data, max_source_positions=6)
    task.load_dataset("train")
    found = [row for batch in batches(task, "train") for row in batch["net_input"]["preceding_tokens"]]
    cut = {" ".join(words(row, task, True)) for row in found}
    whole = {before for before in predecessors(CORPORA["train"]) if before}
    assert cut == {" ".join(NULL), *(" ".join([*before.split()[-5:], "</s>"]) for before in whole)}


def test_text_binarized_in_the_other_direction(tmp_path: Path) -> None:
    corpus = make_corpus([4, 1, 5], seed=4)
    binarize(tmp_path, {"train": [("w1", sentence) for sentence in sentences_of(corpus)]}, "en", "de")
    documents = tmp_path / "train.docids"
    documents.write_text("x\n" * 4 + "y\n" + "z\n" * 5)
    preceding_sentences([str(tmp_path), "-s", "de", "-t", "en", "--documents", f"train={documents}"])
    task = make_context_task(tmp_path)
    task.load_dataset("train")
    check_corpus(task, batches(task, "train"), corpus)


def test_data_directories_in_turn(data: Path, tmp_path: Path) -> None:
    other = make_corpus([3, 9, 1, 1, 20], seed=5, first=3000)
    write_corpora(tmp_path / "other", {"train": other})
    task = make_context_task(f"{data}:{tmp_path / 'other'}")
    task.load_dataset("valid")
    for epoch, corpus in ((1, CORPORA["train"]), (2, other), (3, CORPORA["train"])):
        task.load_dataset("train", epoch=epoch)
        check_corpus(task, batches(task, "train", epoch), corpus)
    check_corpus(task, batches(task, "valid"), CORPORA["valid"])


@pytest.mark.parametrize("upsample", [1, 2, 3])
def test_shards_of_which_the_first_is_repeated(data: Path, upsample: int) -> None:
    task = make_context_task(data, upsample_primary=upsample)
    task.load_dataset("train", combine=True)
    check_corpus(task, batches(task, "train"), CORPORA["train"] * upsample + CORPORA["train1"])


@pytest.mark.parametrize("split, combine", [("train", False), ("valid", False), ("valid", True)])
@pytest.mark.parametrize("upsample", [-1, 3])
def test_nothing_is_repeated_where_there_are_no_shards(data: Path, split: str, combine: bool, upsample: int) -> None:
    task = make_context_task(data, upsample_primary=upsample, preceding_length_ratio=100.0)
    task.load_dataset(split, combine=combine)
    check_corpus(task, batches(task, split), CORPORA[split])


def test_sentences_that_are_filtered_out(data: Path) -> None:
    """What is too long is left out, but is still given as a preceding sentence."""
    task = make_context_task(data)
    task.load_dataset("train")
    found = batches(task, "train", max_positions=(10, 10), ignore_invalid_inputs=True)
    sentences, preceding = sentences_of(CORPORA["train"]), predecessors(CORPORA["train"])
    short = [number for number, sentence in enumerate(sentences) if len(sentence.split()) <= 9]
    assert check(task, found, sentences, preceding) == short
    assert 10 < len(short) < len(sentences) - 10
    assert any(len((preceding[number] or "").split()) > 9 for number in short), "nothing was tested"


def test_every_sentence_filtered_out(data: Path) -> None:
    task = make_context_task(data)
    task.load_dataset("train")
    assert batches(task, "train", max_positions=(2, 2), ignore_invalid_inputs=True) == []


# Batches: their size, their padding, and nobody left out


def varied_corpus(number: int, seed: int) -> Corpus:
    """Documents whose sentences differ in length as those of real text do: many short, a few very long ones."""
    rng = np.random.RandomState(seed)
    lengths = np.clip(rng.lognormal(2.5, 0.9, number), 1, 150).astype(int)
    documents, start = [], 0
    while start < number:
        end = min(start + rng.randint(1, 40), number)
        documents.append([" ".join(rng.choice(WORDS[:30], length)) for length in lengths[start:end]])
        start = end
    return documents


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Tuple[Path, Corpus]:
    corpus = varied_corpus(2500, seed=6)
    return write_corpora(tmp_path_factory.mktemp("varied"), {"train": corpus}), corpus


@pytest.mark.parametrize("max_tokens", [60, 400, 3000])
def test_max_tokens_counts_both_sentences_with_their_padding(varied: Tuple[Path, Corpus], max_tokens: int) -> None:
    task = make_context_task(varied[0])
    task.load_dataset("train")
    limits: Dict[str, Any] = {"max_sentences": None, "max_tokens": max_tokens}
    found = batches(task, "train", max_positions=(50, 50), ignore_invalid_inputs=True, **limits)
    sizes = [
        batch["net_input"]["src_tokens"].numel() + batch["net_input"]["preceding_tokens"].numel()
        for batch in found
        if len(batch["id"]) > 1
    ]
    assert max(sizes) <= max_tokens
    assert max(sizes) > 0.9 * max_tokens
    assert np.mean(sizes) > 0.6 * max_tokens, "the limit is made use of"


def test_long_targets_count_as_well(tmp_path: Path) -> None:
    corpus = make_corpus([20], seed=7, longest=3)
    targets = [" ".join(WORDS[10 : 10 + number % 20]) for number in range(20)]
    task = make_context_task(write_corpora(tmp_path, {"train": corpus}, {"train": targets}))
    task.load_dataset("train")
    found = batches(task, "train", max_sentences=None, max_tokens=60)
    check_corpus(task, found, corpus)
    assert max(batch["target"].numel() for batch in found) <= 60


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("limit", [{"max_sentences": 32}, {"max_sentences": None, "max_tokens": 1000}], ids=str)
def test_every_sentence_comes_once(varied: Tuple[Path, Corpus], limit: Dict[str, Any], multiple: int) -> None:
    """Also in training and with fairseq's default of 8, for which fairseq-fixed drops a last batch of fewer."""
    task = make_context_task(varied[0])
    task.load_dataset("train")
    found = batches(task, "train", required_batch_size_multiple=multiple, **limit)
    check_corpus(task, found, varied[1])


def padding(found: Sequence[Dict[str, Any]], pad: int) -> float:
    """Preceding tokens with padding over those without."""
    tokens = [batch["net_input"]["preceding_tokens"] for batch in found]
    return sum(row.numel() for row in tokens) / sum(int((row != pad).sum()) for row in tokens)


@pytest.mark.parametrize("limit", [{"max_sentences": 32}, {"max_sentences": None, "max_tokens": 1000}], ids=str)
def test_little_padding(varied: Tuple[Path, Corpus], limit: Dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_context_task(varied[0])
    task.load_dataset("train")
    pad = task.source_dictionary.pad()
    assert padding(batches(task, "train", **limit), pad) < 1.5
    dataset = task.dataset("train")
    monkeypatch.setattr(
        dataset, "batch_by_size", lambda *args, **kwargs: FairseqDataset.batch_by_size(dataset, *args, **kwargs)
    )
    assert padding(batches(task, "train", **limit), pad) > 2, "the corpus is too easy"


@pytest.mark.parametrize("multiple", [1, 8])
def test_no_sentence_is_dropped_at_test_time_for_its_predecessor(tmp_path: Path, multiple: int) -> None:
    """A predecessor longer than any limit is itself left out, and what comes after it is translated."""
    long = " ".join(["w3"] * 300)
    corpus = [["0 1", long, "0 2", "0 3"], [long, long, "0 4"], ["0 5"] * 5]
    task = make_context_task(write_corpora(tmp_path, {"train": [["0"]], "test": corpus}))
    task.load_dataset("test")
    limits: Dict[str, Any] = {"max_tokens": 40, "max_positions": (30, 30), "ignore_invalid_inputs": True}
    found = batches(task, "test", max_sentences=None, required_batch_size_multiple=multiple, **limits)
    sentences = sentences_of(corpus)
    short = [number for number, sentence in enumerate(sentences) if sentence != long]
    assert check(task, found, sentences, predecessors(corpus)) == short
    assert [batch["id"].tolist() for batch in found if batch["net_input"]["preceding_tokens"].size(1) == 301] in (
        [[2], [6]],
        [[6], [2]],
    )
    # And where sentences of any length are translated:
    found = batches(task, "test", max_sentences=4)
    check_corpus(task, found, corpus)


# Several preceding sentences


def make_task_of_a_model(data: Any, number: int, **options: Any) -> Any:
    """A task with a model that reads so many preceding sentences."""
    task = make_context_task(data, **options)
    build_model("isg_transformer", task, inter_sentence_context=number, max_source_positions=1000)
    return task


def check_several(task: Any, found: Sequence[Dict[str, Any]], expected: Sequence[List[str]], left_pad: bool) -> None:
    """Every row has its sentences, in the order of the text, each token its sentence's distance; each sentence is in
    one group."""
    for batch in found:
        tokens, distances = (batch["net_input"][f"preceding_{name}"] for name in ("tokens", "distances"))
        places = [row[row < tokens.numel()] for group in batch["net_input"]["preceding_groups"] for row in group]
        assert sorted(torch.cat(places).tolist()) == distances.flatten().nonzero().flatten().tolist()
        grouped = sorted(" ".join(task.source_dictionary[token] for token in tokens.flatten()[row]) for row in places)
        in_rows = []
        for number, row, of_row in zip(batch["id"].tolist(), tokens, distances):
            sentences = [with_eos(sentence) for sentence in expected[number]] or [NULL]
            assert words(row, task, left_pad) == [word for sentence in sentences for word in sentence]
            of_words = [[place] * len(sentence) for place, sentence in zip(range(len(sentences), 0, -1), sentences)]
            assert of_row[row != task.source_dictionary.pad()].tolist() == [place for one in of_words for place in one]
            assert (of_row[row == task.source_dictionary.pad()] == 0).all()
            in_rows += [" ".join(sentence) for sentence in sentences]
        assert grouped == sorted(in_rows)
    assert sorted(number for batch in found for number in batch["id"].tolist()) == list(range(len(expected)))


@pytest.mark.parametrize("number", [2, 3, 20])
@pytest.mark.parametrize("left_pad", [True, False])
def test_several_preceding_sentences(data: Path, number: int, left_pad: bool) -> None:
    """The data directory was made for one, and serves any number."""
    task = make_task_of_a_model(data, number, left_pad_source=left_pad)
    task.load_dataset("train")
    check_several(task, batches(task, "train"), several_predecessors(CORPORA["train"], number), left_pad)


def test_several_preceding_sentences_of_shards(data: Path) -> None:
    task = make_task_of_a_model(data, 3, upsample_primary=2)
    task.load_dataset("train", combine=True)
    corpus = CORPORA["train"] * 2 + CORPORA["train1"]
    check_several(task, batches(task, "train"), several_predecessors(corpus, 3), True)


def test_an_empty_line_ends_a_document_for_all(tmp_path: Path) -> None:
    corpus = [["0 1", "0 2", "", "0 3", "0 4", "0 5"], ["0 6"]]
    assert several_predecessors(corpus, 2) == [[], ["0 1"], [], [], ["0 3"], ["0 3", "0 4"], []]
    task = make_task_of_a_model(write_corpora(tmp_path, {"train": corpus}), 2)
    task.load_dataset("train")
    check_several(task, batches(task, "train"), several_predecessors(corpus, 2), True)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("limit", [{"max_sentences": 32}, {"max_sentences": None, "max_tokens": 1000}], ids=str)
def test_little_padding_where_sentences_are_encoded(
    varied: Tuple[Path, Corpus], limit: Dict[str, Any], number: int
) -> None:
    """Of the rows that attention reads, and of the groups of sentences that are encoded."""
    task = make_task_of_a_model(varied[0], number)
    task.load_dataset("train")
    found = batches(task, "train", **limit)
    pad = task.source_dictionary.pad()
    assert padding(found, pad) < 1.5
    if number > 1:
        encoded = sum(group.numel() for batch in found for group in batch["net_input"]["preceding_groups"])
        assert encoded / sum(int((b["net_input"]["preceding_tokens"] != pad).sum()) for b in found) < 1.5


def test_conditions_are_of_every_preceding_sentence(tmp_path: Path) -> None:
    corpus = of_lengths([4, 8, 5, 4, 4])
    options = {"preceding_max_length": 7}
    for number, expected in ((1, [0, 3, 4]), (2, [0, 4])):
        data = write_corpora(tmp_path / str(number), {"train": corpus})
        task = make_task_of_a_model(data, number, **options)
        task.load_dataset("train")
        assert sorted(row for batch in batches(task, "train") for row in batch["id"].tolist()) == expected


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 100])
def test_several_lines_of_interactive(data: Path, buffer_size: int) -> None:
    """Also over the borders of several buffers."""
    task = make_task_of_a_model(data, 3)
    found = list(interact(task, LINES, buffer_size))
    check_several(task, found, several_predecessors([LINES], 3), True)


# What is changed at random in training


def sources_of(found: Sequence[Dict[str, Any]], task: Any, name: str = "src_tokens") -> Dict[int, List[str]]:
    return {
        number: [task.source_dictionary[token] for token in row.tolist() if token != task.source_dictionary.pad()]
        for batch in found
        for number, row in zip(batch["id"].tolist(), batch["net_input"][name])
    }


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
    assert sources_of(batches(task, "train", epoch=1), task) == first, "a resumed training draws the same"
    second = sources_of(batches(task, "train", epoch=2), task)
    assert sum(first[number] != second[number] for number in first) > len(first) / 2
    if kind == "gate":
        whole_before = {n: with_eos(one) if one else NULL for n, one in enumerate(predecessors(varied[1]))}
        assert sources_of(batches(task, "train"), task, "preceding_tokens") == whole_before


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


@pytest.mark.parametrize("kind", ["gate", "concatenation"])
def test_a_random_number_of_preceding_sentences(varied: Tuple[Path, Corpus], kind: str) -> None:
    """From none to two, each as often, and always the nearest."""
    if kind == "gate":
        task = make_task_of_a_model(varied[0], 2, sample_context_size=True)
    else:
        given = {"concatenate_preceding": "<sep>", "concatenate_number": 2, "sample_context_size": True}
        task = make_context_task(varied[0], load_preceding_sentences=False, **given)
    task.load_dataset("train")
    name = "preceding_tokens" if kind == "gate" else "src_tokens"
    found = sources_of(batches(task, "train"), task, name)
    numbers = []
    for number, (sentence, before) in enumerate(zip(sentences_of(varied[1]), several_predecessors(varied[1], 2))):
        if kind == "gate":
            possible = [NULL, *([word for one in before[-n:] for word in with_eos(one)] for n in (1, 2))]
        else:
            joined = [[*(w for one in before[len(before) - n :] for w in (*one.split(), "<sep>"))] for n in (0, 1, 2)]
            possible = [[*one, *with_eos(sentence)] for one in joined[: 1 + len(before)]]
        assert found[number] in possible[: 1 + len(before)]
        if len(before) == 2:
            numbers.append(possible.index(found[number]))
    assert np.bincount(numbers) / len(numbers) == pytest.approx([1 / 3] * 3, abs=0.05)


# Which sentences are trained on


def kept(
    tmp_path: Path, corpus: Corpus, targets: Optional[List[str]] = None, **options: Any
) -> Tuple[List[int], List[int]]:
    """The rows of train and of valid, which are the same data, that come in batches."""
    data = write_corpora(
        tmp_path / "data", {"train": corpus, "valid": corpus}, {"train": targets, "valid": targets} if targets else None
    )
    task = make_context_task(data, **options)
    found = []
    for split in ("train", "valid"):
        task.load_dataset(split)
        of_split = batches(task, split, required_batch_size_multiple=8)
        found.append(check(task, of_split, sentences_of(corpus), predecessors(corpus)))
    return found[0], found[1]


def of_lengths(*documents: Sequence[int]) -> Corpus:
    return [[" ".join(WORDS[:length]) for length in document] for document in documents]


def test_length_ratio(tmp_path: Path) -> None:
    """Twice as long either way is kept, one more word is not; a document's first sentence is, whatever its length."""
    corpus = of_lengths([4, 8, 4, 9, 9, 4], [25, 13, 6, 6], [1], [0, 1])
    train, valid = kept(tmp_path, corpus, preceding_length_ratio=2.0)
    assert train == [0, 1, 2, 4, 6, 7, 9, 10, 11, 12]
    assert valid == list(range(13))


def test_length_ratio_between_whole_numbers(tmp_path: Path) -> None:
    assert kept(tmp_path, of_lengths([2, 3, 5, 7]), preceding_length_ratio=1.5)[0] == [0, 1, 3]


def test_max_length(tmp_path: Path) -> None:
    """None of source, target and preceding sentence is longer than 8 words, end of sentence not counted."""
    corpus = of_lengths([8, 8, 9, 8, 8], [7, 1], [8, 8])
    targets = [" ".join(WORDS[:length]) for length in (1, 8, 1, 1, 9, 8, 9, 1, 1)]
    train, valid = kept(tmp_path, corpus, targets, preceding_max_length=8)
    # Left out: 2 for its source, 3 for its predecessor, 4 and 6 for their targets.
    assert train == [0, 1, 5, 7, 8]
    assert valid == list(range(9))


def test_both_conditions(tmp_path: Path) -> None:
    corpus = of_lengths([3, 6, 7, 2, 2])
    assert kept(tmp_path, corpus, preceding_length_ratio=2.0, preceding_max_length=6)[0] == [0, 1, 4]


@pytest.mark.parametrize(
    "options", [{"preceding_max_length": 4}, {"preceding_length_ratio": 2.0, "preceding_max_length": 4}]
)
def test_nothing_is_left(tmp_path: Path, options: Dict[str, Any]) -> None:
    task = make_context_task(write_corpora(tmp_path, {"train": of_lengths([5, 6], [7])}), **options)
    with pytest.raises(UserError, match="train: --preceding-length-ratio and --preceding-max-length leave no sentence"):
        task.load_dataset("train")


def test_conditions_on_repeated_shards(tmp_path: Path) -> None:
    corpora = {"train": of_lengths([4, 9], [3]), "train1": of_lengths([2, 5, 6])}
    task = make_context_task(write_corpora(tmp_path, corpora), upsample_primary=2, preceding_length_ratio=2.0)
    task.load_dataset("train", combine=True)
    corpus = corpora["train"] * 2 + corpora["train1"]
    found = batches(task, "train")
    assert check(task, found, sentences_of(corpus), predecessors(corpus)) == [0, 2, 3, 5, 6, 8]


# fairseq-interactive


class Recorder:
    """In place of a sequence generator: keeps what it is given to translate."""

    def __init__(self) -> None:
        self.seen: List[Dict[str, Any]] = []

    def generate(self, models: Any, sample: Dict[str, Any], **_: Any) -> List[Any]:
        self.seen.append(sample)
        return []


def interact(task: Any, lines: Sequence[str], buffer_size: int, **limits: Any) -> Iterator[Dict[str, Any]]:
    """The batches that reach the generator of fairseq-interactive, as it makes and rebuilds them, each with the numbers
    of its lines as ``id``."""
    limits = {"max_sentences": buffer_size, "max_positions": (1000, 1000), **limits}
    for start in range(0, len(lines), buffer_size):
        buffer = lines[start : start + buffer_size]
        tokens, lengths = task.get_interactive_tokens_and_lengths(buffer, lambda line: line)
        dataset = task.build_dataset_for_inference(tokens, lengths, constraints=None)
        for batch in task.get_batch_iterator(dataset, **limits).next_epoch_itr(shuffle=False):
            net_input = {name: batch["net_input"][name] for name in ("src_tokens", "src_lengths")}
            recorder = Recorder()
            task.inference_step(recorder, [], {"net_input": net_input}, constraints=None)
            yield {**recorder.seen[0], "id": start + batch["id"]}


LINES = ["0 1", "0 2 w1 w2", "", "0 3", "0 4 w5", "", "", "0 5", "0 6", "0 7 w9", "w1 w1 w1 w1 w1", "0 9"]
LINES_BEFORE = [None, "0 1", None, None, "0 3", None, None, None, "0 5", "0 6", "0 7 w9", "w1 w1 w1 w1 w1"]


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("limit", [{}, {"max_sentences": 1}, {"max_sentences": None, "max_tokens": 20}], ids=str)
def test_lines_of_interactive(data: Path, buffer_size: int, limit: Dict[str, Any]) -> None:
    """Each line is given the one before it, also over the border of a buffer; the line after an empty one, none."""
    task = make_context_task(data)
    found = list(interact(task, LINES, buffer_size, **limit))
    assert check(task, found, LINES, LINES_BEFORE) == list(range(len(LINES)))


@pytest.mark.parametrize("buffer_size", [1, 3])
def test_a_line_of_interactive_that_is_too_long(data: Path, buffer_size: int) -> None:
    """--skip-invalid-size-inputs-valid-test leaves it out, and it is still the predecessor of the next."""
    task = make_context_task(data)
    found = list(interact(task, LINES, buffer_size, max_positions=(5, 5), ignore_invalid_inputs=True))
    assert check(task, found, LINES, LINES_BEFORE) == [number for number in range(len(LINES)) if number != 10]


def test_a_thousand_buffers_leave_nothing_behind(data: Path) -> None:
    task = make_context_task(data)
    datasets: List[Any] = []
    build = task.build_dataset_for_inference

    def build_dataset_for_inference(*args: Any, **kwargs: Any) -> Any:
        dataset = build(*args, **kwargs)
        datasets.append(weakref.ref(dataset))
        return dataset

    task.build_dataset_for_inference = build_dataset_for_inference
    found = sum(1 for _ in interact(task, [f"0 {number % 10}" for number in range(1000)], 1))
    assert found == len(datasets) == 1000
    gc.collect()
    assert len(task.dataset_to_epoch_iter) == 0
    assert sum(dataset() is not None for dataset in datasets) <= 1, "the last buffer, at most"


# The concatenation baseline


def concatenated(sentence: str, before: Optional[str], separator: str = "<sep>", longest: int = 1000) -> List[str]:
    """Preceding sentence, separator and sentence as words, the first cut at its beginning to what there is room for."""
    source = with_eos(sentence)
    room = longest - len(source) - 1
    if before is None or room < 1:
        return source
    return [*before.split()[-room:], separator, *source]


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
def test_concatenation(data: Path, separator: str, left_pad_source: bool) -> None:
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


@pytest.fixture(scope="module")
def with_targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpora, in which each target is its source in reverse."""
    targets = {name: [" ".join(sentence.split()[::-1]) for sentence in sentences_of(c)] for name, c in CORPORA.items()}
    return write_corpora(tmp_path_factory.mktemp("targets"), CORPORA, targets)


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


def test_contexts_shifted_by_hand() -> None:
    """Half of the sentences that have any further on, around the end; the first of a document has none still."""
    rows = np.array([[-1], [0], [1], [-1], [3], [4], [5]])
    assert shift(rows).ravel().tolist() == [-1, 3, 4, -1, 5, 0, 1]
    assert shift(np.array([[-1], [-1]])).ravel().tolist() == [-1, -1]
    assert shift(np.zeros((0, 1), dtype=int)).tolist() == []
    with pytest.raises(
        UserError, match="of a split's 7 sentences 5 have preceding ones, and for a model .* 2 it takes 6"
    ):
        shift(np.concatenate([rows, rows], axis=1))


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


# What is refused

REMEDY = "run: ctxgates preceding-sentences"
CRITERION = OmegaConf.create({"_name": "cross_entropy", "sentence_avg": False})


@pytest.fixture
def copied(data: Path, tmp_path: Path) -> Path:
    """A copy of the data directory that may be changed."""
    return Path(shutil.copytree(data, tmp_path / "data"))


@pytest.fixture(
    params=[{}, {"load_preceding_sentences": False, "concatenate_preceding": "<sep>"}], ids=["gate", "concatenation"]
)
def use(request: pytest.FixtureRequest) -> Dict[str, Any]:
    """The options for the two ways of using the stream."""
    return dict(request.param)


def refused(data: Path, message: str, use: Dict[str, Any]) -> None:
    with pytest.raises(UserError, match=message):
        make_context_task(data, **use).load_dataset("train")


def test_data_that_were_shuffled(copied: Path, use: Dict[str, Any]) -> None:
    sentences = sentences_of(CORPORA["train"])
    write_split(copied / "train.de-en.de", sentences[1:] + sentences[:1], DICTIONARY)
    refused(copied, f"train.preceding.de-en.bin was made for other data.*{REMEDY} {copied} -s de -t en", use)


def test_data_that_were_binarized_again(copied: Path, use: Dict[str, Any]) -> None:
    write_split(copied / "train.de-en.de", sentences_of(make_corpus([60], seed=8)), DICTIONARY)
    refused(copied, f"train.preceding.de-en.bin was made for other data.*{REMEDY} {copied} -s de -t en", use)


def test_another_dictionary(copied: Path, use: Dict[str, Any]) -> None:
    path = copied / "dict.de.txt"
    first, second, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *others]))
    refused(copied, f"other data or dictionaries.*{REMEDY}", use)


def test_the_target_may_change(copied: Path, use: Dict[str, Any]) -> None:
    """The stream depends on the source alone."""
    path = copied / "dict.en.txt"
    first, second, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *others]))
    task = make_context_task(copied, **use)
    task.load_dataset("train")
    assert [stream.name for stream in task.dataset("train").streams] == ["preceding"]


def test_no_stream(copied: Path, use: Dict[str, Any]) -> None:
    for path in copied.glob("train.preceding.*"):
        path.unlink()
    refused(
        copied,
        f"train.preceding.de-en.idx not found; {REMEDY} {copied} -s de -t en --documents train=FILE",
        use,
    )


def test_a_shard_without_a_stream(copied: Path, use: Dict[str, Any]) -> None:
    (copied / "train1.preceding.de-en.idx").unlink()
    task = make_context_task(copied, upsample_primary=1, **use)
    with pytest.raises(UserError, match=f"train1.preceding.de-en.idx not found; {REMEDY} .*train1=FILE"):
        task.load_dataset("train", combine=True)


@pytest.mark.parametrize(
    "number, row, message",
    [
        (5, [5], "row 6 names row 6 as its preceding sentence, which is not one before it"),
        (5, [6], "row 6 names row 7 as its preceding sentence"),
        (5, [60], "row 6 names row 61 as its preceding sentence"),
        (5, [-1], "row 6 names row 0 as its preceding sentence"),
        (0, [0], "row 1 names row 1 as its preceding sentence"),
        (5, [3, 4], "row 6 names more than one preceding sentence"),
    ],
    ids=["itself", "forward", "outside", "negative", "first", "two"],
)
def test_a_stream_that_points_elsewhere(
    copied: Path, use: Dict[str, Any], number: int, row: List[int], message: str
) -> None:
    rows: List[List[int]] = [[] for _ in range(60)]
    rows[number] = row
    write_rows(copied, rows)
    refused(copied, f"train.preceding.de-en.idx: {message}.*{REMEDY}", use)


def test_a_stream_of_another_length(copied: Path, use: Dict[str, Any]) -> None:
    write_rows(copied, [[]] * 59)
    refused(copied, f"train.preceding.de-en.idx has 59 rows for 60 sentences.*{REMEDY}", use)


def write_rows(data: Path, rows: Sequence[Sequence[int]]) -> None:
    """A stream with these rows and the right fingerprint."""
    split = Split(data, "train", "de", "en")
    metadata = {"fingerprint": fingerprint(split, PrecedingSentences.languages)}
    write_side_stream(split.stream_prefix("preceding"), np.int64, metadata, rows)


def test_any_earlier_sentence_may_be_the_preceding_one(copied: Path) -> None:
    """A stream made elsewhere need not name the row just before."""
    write_rows(copied, [[]] + [[number // 2] for number in range(1, 60)])
    task = make_context_task(copied)
    task.load_dataset("train")
    sentences = sentences_of(CORPORA["train"])
    preceding = [None, *(sentences[number // 2] for number in range(1, 60))]
    assert check(task, batches(task, "train"), sentences, preceding) == list(range(60))


@pytest.mark.parametrize(
    "arch, options",
    [("isg_transformer", {}), ("transformer", {"concatenate_preceding": "<sep>"})],
)
def test_batch_buckets(arch: str, options: Dict[str, Any]) -> None:
    task = make_task(num_batch_buckets=2, **options)
    build_model(arch, task)
    with pytest.raises(UserError, match="--num-batch-buckets does not go with preceding sentences"):
        task.build_criterion(CRITERION)


def test_a_model_that_does_not_read_preceding_sentences() -> None:
    task = make_task(load_preceding_sentences=True)
    build_model("transformer", task)
    with pytest.raises(UserError, match="--load-preceding-sentences needs an architecture.*--arch isg_transformer"):
        task.build_criterion(CRITERION)


def test_a_model_that_has_them_twice() -> None:
    task = make_task(concatenate_preceding="<sep>")
    build_model("isg_transformer", task)
    with pytest.raises(UserError, match="--concatenate-preceding is for architectures without a gate"):
        task.build_criterion(CRITERION)


@pytest.mark.parametrize(
    "arch, options",
    [("isg_transformer", {"load_preceding_sentences": True}), ("transformer", {"concatenate_preceding": "<sep>"})],
)
def test_a_model_that_reads_them(arch: str, options: Dict[str, Any]) -> None:
    task = make_task(**options)
    build_model(arch, task)
    task.build_criterion(CRITERION)


def test_a_model_that_reads_them_has_them_without_being_told(data: Path) -> None:
    task = make_context_task(data, load_preceding_sentences=False)
    build_model("isg_transformer", task)
    task.load_dataset("valid")
    check_corpus(task, batches(task, "valid"), CORPORA["valid"])
