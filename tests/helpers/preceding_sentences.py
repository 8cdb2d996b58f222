"""Corpora in document order, and what a batch of them must have. Shared by the tests of preceding sentences."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch
from torch import Tensor

from fairseq_ctxgates.commands.preceding_sentences import main as preceding_sentences
from tests.helpers.corpus import make_dictionary, write_split
from tests.helpers.fairseq_commands import setup_task
from tests.helpers.models import build_model

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


def of_lengths(*documents: Sequence[int]) -> Corpus:
    return [[" ".join(WORDS[:length]) for length in document] for document in documents]


def make_context_task(data: Any, **options: Any) -> Any:
    return setup_task(data, **{"load_gate_labels": False, "load_preceding_sentences": True, **options})


def make_task_of_a_model(data: Any, number: int, **options: Any) -> Any:
    """A task with a model that reads so many preceding sentences."""
    task = make_context_task(data, **options)
    build_model("isg_transformer", task, inter_sentence_context=number, max_source_positions=1000)
    return task


def batches(task: Any, split: str, epoch: int = 1, **options: Any) -> List[Dict[str, Any]]:
    """A shuffled epoch of a split, as fairseq-train iterates over it."""
    options = {"max_sentences": 8, "seed": 1, **options}
    return list(task.get_batch_iterator(task.dataset(split), epoch=epoch, **options).next_epoch_itr(shuffle=True))


def sources_of(found: Sequence[Dict[str, Any]], task: Any, name: str = "src_tokens") -> Dict[int, List[str]]:
    return {
        number: [task.source_dictionary[token] for token in row.tolist() if token != task.source_dictionary.pad()]
        for batch in found
        for number, row in zip(batch["id"].tolist(), batch["net_input"][name])
    }


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


def padding(found: Sequence[Dict[str, Any]], pad: int) -> float:
    """Preceding tokens with padding over those without."""
    tokens = [batch["net_input"]["preceding_tokens"] for batch in found]
    return sum(row.numel() for row in tokens) / sum(int((row != pad).sum()) for row in tokens)


def concatenated(sentence: str, before: Optional[str], separator: str = "<sep>", longest: int = 1000) -> List[str]:
    """Preceding sentence, separator and sentence as words, the first cut at its beginning to what there is room for."""
    source = with_eos(sentence)
    room = longest - len(source) - 1
    if before is None or room < 1:
        return source
    return [*before.split()[-room:], separator, *source]


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
