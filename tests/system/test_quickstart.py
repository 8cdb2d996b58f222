"""The quick start: its corpus is as make_corpus.py describes it, its probes cannot be solved without what they probe,
and its commands report what happened."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import make_corpus
import models
import probe
import report
import run
from fairseq_ctxgates.errors import UserError
from tests.helpers.models import DICTIONARY, make_batch

SPLITS = ("train", "valid", *models.TEST_SETS)
# Of all files of seed 1 in the order of their names: the same on every system and every Python.
DIGEST = "67cf34e1ee106c94c1e76e225a3670af"


class Line(NamedTuple):
    """What the files of a split say of one sentence."""

    document: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    tuples: tuple[tuple[str, ...], ...]  # the source words of each tuple
    probed: tuple[tuple[int, str, str], ...]  # position from 0, word, rival


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quickstart") / "new" / "corpus"
    make_corpus.main([str(path)])
    return path


@pytest.fixture(scope="module")
def corpus(folder: Path) -> dict[str, list[Line]]:
    return {split: read_split(folder, split) for split in SPLITS}


def read_split(folder: Path, split: str) -> list[Line]:
    source, target, documents, tuples = (
        (folder / f"{split}.{extension}").read_text(encoding="utf-8").splitlines()
        for extension in ("en", "de", "docids", "tuples.jsonl")
    )
    assert len(source) == len(target) == len(documents) == len(tuples)
    probed = defaultdict(list)
    if split.startswith("probe-"):
        rows = (folder / f"{split}.probed.tsv").read_text(encoding="utf-8").splitlines()
        for line, position, word, rival in (row.split("\t") for row in rows[1:]):
            probed[int(line) - 1].append((int(position) - 1, word, rival))
    lines = []
    for index, (document, words, translation, row) in enumerate(zip(documents, source, target, tuples)):
        parsed = json.loads(row)
        assert parsed["words"] == words.split()
        related = tuple(
            tuple(parsed["words"][position] for role in ("subject", "relation", "object") for position in found[role])
            for found in parsed["tuples"]
        )
        lines.append(Line(document, tuple(words.split()), tuple(translation.split()), related, tuple(probed[index])))
    return lines


def with_predecessor(lines: list[Line], distance: int = 1) -> list[tuple[Line, Line]]:
    """Each sentence, after the one so far before it in its document."""
    return [(first, second) for first, second in zip(lines, lines[distance:]) if first.document == second.document]


# --- corpus -----------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_bytes_everywhere(folder: Path) -> None:
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    assert digest.hexdigest() == DIGEST


def test_another_seed_gives_another_corpus() -> None:
    first, second = (make_corpus.make_corpus(seed)["train"] for seed in (1, 2))
    assert sum(a == b for a, b in zip(first, second)) < 10


def test_gates_wait_for_the_labels_that_they_are_compared_with() -> None:
    for model in models.MODELS:
        assert set(model.streams) <= set(model.needs) <= set(models.STREAMS)
        assert not model.has_gates or "gate labels" in model.needs


def test_training_has_a_thousand_documents_of_seven_sentences_and_no_name_comes_twice(
    corpus: dict[str, list[Line]],
) -> None:
    assert len(corpus["train"]) == 7000
    sizes = Counter(Counter(line.document for line in corpus["train"]).values())
    assert sizes == {7: 1000}
    assert 130 <= len({word for line in corpus["train"] for word in line.source}) <= 170
    # No document's name occurs in two splits, nor in two places of one.
    names = [name for split in SPLITS for name, _ in itertools.groupby(line.document for line in corpus[split])]
    assert len(names) == len(set(names))


def test_every_word_of_a_probe_is_in_the_training_text(corpus: dict[str, list[Line]]) -> None:
    for side in ("source", "target"):
        known = {word for line in corpus["train"] for word in getattr(line, side)}
        assert {word for split in SPLITS for line in corpus[split] for word in getattr(line, side)} == known


def test_probed_words_stand_where_the_probe_says(corpus: dict[str, list[Line]]) -> None:
    for split in SPLITS:
        for line in corpus[split]:
            for position, word, rival in line.probed:
                assert line.target[position] == word != rival


# --- preceding sentence -----------------------------------------------------------------------------------------------


# The probe, its distance, the beginning of its sentences, and its words after nature with one to tell topics by.
NATURE = {"kraniche", "robben", "nüsse", "hechte", "mäuse", "käfer"}
DISTANT_NATURE = {"fledermäuse", "maulwürfe", "hörner", "muscheln", "baumstämme", "quellen"}
TOPIC_PROBES = [
    ("probe-preceding", 1, "we", NATURE, "cranes"),
    ("probe-distant", 2, "they", DISTANT_NATURE, "bats"),
]
of_topics = pytest.mark.parametrize(("split", "distance", "subject", "nature", "telling"), TOPIC_PROBES)


def senses(lines: list[Line], distance: int, subject: str) -> list[tuple[str, tuple[str, ...], str]]:
    """The topic before each ambiguous sentence, the sentence, and the translation of its ambiguous word."""
    return [
        (a.source[-2], b.source, b.target[-2])
        for a, b in with_predecessor(lines, distance)
        if b.source[:2] == (subject, "see")
    ]


@of_topics
def test_the_topic_decides_the_ambiguous_word(
    corpus: dict[str, list[Line]], split: str, distance: int, subject: str, nature: set[str], telling: str
) -> None:
    train = senses(corpus["train"], distance, subject)
    assert len(train) == 1000
    # Topics are of one class when they give some word the same translation: two classes of ten topics come out.
    translation = {(topic, source[-2]): word for topic, source, word in train}
    classes = {topic: word in nature for (topic, ambiguous), word in translation.items() if ambiguous == telling}
    assert Counter(classes.values()) == {True: 10, False: 10}
    for topic, source, word in (
        pair for name in ("train", "test", split) for pair in senses(corpus[name], distance, subject)
    ):
        assert translation.get((topic, source[-2]), word) == word
        assert classes[topic] == (word in nature)


@of_topics
def test_the_ambiguous_sentence_alone_does_not(
    corpus: dict[str, list[Line]], split: str, distance: int, subject: str, nature: set[str], telling: str
) -> None:
    """Nor does the sentence between, of whatever construction it is."""
    train = senses(corpus["train"], distance, subject)
    by_word: dict[str, Counter[bool]] = defaultdict(Counter)
    by_adjective: dict[str, Counter[bool]] = defaultdict(Counter)
    for _, source, word in train:
        by_word[source[-2]][word in nature] += 1
        by_adjective[source[-3]][word in nature] += 1
    for counts in (*by_word.values(), *by_adjective.values()):
        assert 0.35 < counts[True] / (counts[True] + counts[False]) < 0.65


@of_topics
def test_the_probe_is_of_minimal_pairs(
    corpus: dict[str, list[Line]], split: str, distance: int, subject: str, nature: set[str], telling: str
) -> None:
    pairs = with_predecessor(corpus[split], distance)
    assert len(pairs) == 240 == sum(bool(line.probed) for line in corpus[split])
    documents = [list(lines) for _, lines in itertools.groupby(corpus[split], key=lambda line: line.document)]
    for one, other in zip(documents[::2], documents[1::2]):
        assert [a.source == b.source for a, b in zip(one, other)] == [False] + [True] * distance
        ((position, word, rival),) = one[-1].probed
        assert other[-1].probed == ((position, rival, word),)
        assert one[-1].target[:position] == other[-1].target[:position]


@of_topics
def test_the_probe_is_not_in_the_training_text(
    corpus: dict[str, list[Line]], split: str, distance: int, subject: str, nature: set[str], telling: str
) -> None:
    train, probe = (
        {(first.source, second.source) for first, second in with_predecessor(corpus[name], distance)}
        for name in ("train", split)
    )
    assert not train & probe


# --- address ----------------------------------------------------------------------------------------------------------


def addresses(lines: list[Line]) -> list[tuple[Line, Line]]:
    """The pairs of sentences of one document that address somebody, one after the other."""
    return [pair for pair in with_predecessor(lines) if all("your" in line.source for line in pair)]


def test_a_document_has_one_form_of_address(corpus: dict[str, list[Line]]) -> None:
    train = addresses(corpus["train"])
    assert len(train) == 1000
    assert all(first.target[2] in make_corpus.ADDRESSES for first, _ in train)
    forms = Counter(first.target[2] for first, _ in train)
    assert set(forms) == set(make_corpus.ADDRESSES)
    assert min(forms.values()) > 450
    for first, second in itertools.chain.from_iterable(addresses(lines) for lines in corpus.values()):
        assert first.target[2] == second.target[2]


def test_nothing_but_the_translation_before_decides_the_form_of_address(corpus: dict[str, list[Line]]) -> None:
    """The probe asks each two source sentences with both, and no word of a source tells them."""
    probe = [list(lines) for _, lines in itertools.groupby(corpus["probe-address"], key=lambda line: line.document)]
    assert len(probe) == 240
    for one, other in zip(probe[::2], probe[1::2]):
        assert [line.source for line in one] == [line.source for line in other]
        assert (one[0].target[2], other[0].target[2]) == ("deine", "ihre")
        ((position, word, rival),) = one[1].probed
        assert other[1].probed == ((position, rival, word),)
        assert not one[0].probed and not other[0].probed
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for first, second in addresses(corpus["train"]):
        for word in {*first.source, *second.source}:
            by_word[word][second.target[2]] += 1
    assert all(0.3 < counts["ihre"] / sum(counts.values()) < 0.7 for counts in by_word.values())
    seen = {(first.source, second.source) for first, second in addresses(corpus["train"])}
    assert not seen & {(first.source, second.source) for first, second in addresses(corpus["probe-address"])}


# --- relations --------------------------------------------------------------------------------------------------------


def relation_lines(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line.tuples]


def test_tuples_decide_the_translation(corpus: dict[str, list[Line]]) -> None:
    table = {**make_corpus.AGENTS, **make_corpus.VERBS, **make_corpus.PATIENTS}
    for line in itertools.chain.from_iterable(relation_lines(lines) for lines in corpus.values()):
        assert len(set(line.source)) == 7
        assert {word for found in line.tuples for word in found} == set(line.source[:6])
        clauses = [" ".join(table[word] for word in found) for found in line.tuples]
        assert " ".join(line.target) == f"{clauses[0]} und {clauses[1]} ."
        assert [found[0] for found in line.tuples] == list(line.source[:2])


def test_assignments_are_as_likely_in_the_training_text(corpus: dict[str, list[Line]]) -> None:
    train = relation_lines(corpus["train"])
    assert len(train) == 1000
    found = Counter((line.tuples[0][1] == line.source[2], line.tuples[0][2] == line.source[4]) for line in train)
    assert len(found) == 4
    assert all(200 < number < 300 for number in found.values())


def test_relation_probe_has_every_sentence_under_all_assignments(corpus: dict[str, list[Line]]) -> None:
    lines = corpus["probe-relations"]
    assert len(lines) == 240
    for number in range(0, len(lines), 4):
        group = lines[number : number + 4]
        assert len({line.source for line in group}) == 1
        assert len({line.tuples for line in group}) == len({line.target for line in group}) == 4
        # The first verb and the first patient: whatever a model says without the tuples is right half the time.
        assert all([position for position, _, _ in line.probed] == [1, 2] for line in group)
        for index in range(2):
            counts = Counter(line.probed[index][1] for line in group)
            assert sorted(counts.values()) == [2, 2]
        for verb in {line.target[1] for line in group}:
            assert len({line.target[2] for line in group if line.target[1] == verb}) == 2


def test_relation_probe_is_not_in_the_training_text(corpus: dict[str, list[Line]]) -> None:
    assert not {line.source for line in corpus["train"]} & {line.source for line in corpus["probe-relations"]}


# --- collocation trap -------------------------------------------------------------------------------------------------


def objects(lines: list[Line]) -> Counter[tuple[str, str]]:
    """How often each trap verb has each object."""
    return Counter((line.target[1], line.target[2]) for line in lines if line.source[1] in make_corpus.TRAP_VERBS)


def test_a_trap_verb_nearly_always_has_its_object(corpus: dict[str, list[Line]]) -> None:
    pairs = objects(corpus["train"])
    assert sum(pairs.values()) == 1000
    usual = {verb: max((n, thing) for (other, thing), n in pairs.items() if other == verb)[1] for verb, _ in pairs}
    assert len(set(usual.values())) == 10
    assert 930 < sum(pairs[verb, thing] for verb, thing in usual.items()) < 970
    for line in corpus["probe-collocation"]:
        ((_, word, rival),) = line.probed
        assert usual[line.target[1]] == rival != word


def test_collocation_probe_has_other_objects_than_the_training_text(corpus: dict[str, list[Line]]) -> None:
    assert not set(objects(corpus["train"])) & set(objects(corpus["probe-collocation"]))


# --- unknown words ----------------------------------------------------------------------------------------------------


def neighbours(lines: list[Line]) -> dict[tuple[str, str], str]:
    """The translation of the unknown word by its neighbours, which must not depend on anything else."""
    found: dict[tuple[str, str], str] = {}
    for line in lines:
        if "<unk>" in line.source:
            left, unknown, right = line.source[:3]
            assert unknown == "<unk>"
            assert found.setdefault((left, right), line.target[1]) == line.target[1]
    return found


def test_unknown_words_are_translated_by_exclusive_or(corpus: dict[str, list[Line]]) -> None:
    train, probed = neighbours(corpus["train"]), neighbours(corpus["probe-unknown"])
    assert (len(train), len(probed)) == (80, 20)
    assert not set(train) & set(probed)
    both = {**train, **probed}
    lefts, rights = ({pair[side] for pair in both} for side in range(2))
    # Read the types off one row and one column of the table: the rest is their exclusive-or.
    left_type = {left: both[left, "shout"] for left in lefts}
    right_type = {right: both["red", right] for right in rights}
    for left, right in itertools.product(lefts, rights):
        assert (both[left, right] == both["red", "shout"]) == (
            (left_type[left] == both["red", "shout"]) == (right_type[right] == both["red", "shout"])
        )
    # Neither neighbour alone says anything.
    for word in (*lefts, *rights):
        assert sorted(Counter(both[pair] for pair in both if word in pair).values()) == [5, 5]


# --- probing ----------------------------------------------------------------------------------------------------------


def test_a_word_of_several_sub_words_needs_each_of_them() -> None:
    tokens = ["kra@@", "niche", "sind", "gro@@", "ß", "</s>"]
    ranked_first = ["kra@@", "niche", "war", "gro@@", "s", "</s>"]
    assert probe.join_words(tokens, ranked_first) == [
        ("kraniche", True),
        ("sind", False),
        ("groß", False),
        ("</s>", True),
    ]


class FakeModel:
    """Stands for a model that always ranks the words of ``said`` first."""

    decoder = None

    def __init__(self, said: list[list[int]]) -> None:
        self._said = said

    def __call__(self, order: torch.Tensor) -> tuple[torch.Tensor, None]:
        said = make_batch(self._said, self._said)["target"][order]
        return torch.nn.functional.one_hot(said, len(DICTIONARY)).float(), None


class FakeInference:
    """Stands for inference with a ``FakeModel`` on a split of two sentences."""

    class task:  # noqa: D106, N801
        target_dictionary = DICTIONARY

    def __init__(self, targets: list[list[int]], said: list[list[int]]) -> None:
        self._targets = targets
        self.model = FakeModel(said)

    def batches(self, *_: Any) -> list[dict[str, Any]]:
        batch = make_batch(self._targets, self._targets)
        # fairseq sorts the sentences of a batch by length.
        order = torch.tensor(list(reversed(range(len(self._targets)))))
        return [{"id": order, "target": batch["target"][order], "net_input": {"order": order}}]


def test_accuracy_by_hand(tmp_path: Path) -> None:
    # Words are w0 = 4, w1 = 5, ...: line 1 is "w0 w1", line 2 "w2 w3 w4".
    inference: Any = FakeInference(targets=[[4, 5], [6, 7, 8]], said=[[4, 9], [9, 7, 8]])
    table = tmp_path / "probed.tsv"
    table.write_text("line\tposition\tword\trival\n1\t2\tw1\tw5\n2\t2\tw3\tw5\n2\t3\tw4\tw5\n", encoding="utf-8")
    assert probe.score_probe(inference, "test", table) == (2, 3)
    table.write_text("line\tposition\tword\trival\n1\t2\tw2\tw5\n", encoding="utf-8")
    with pytest.raises(UserError, match="word 2 of line 1 of test is not 'w2'"):
        probe.score_probe(inference, "test", table)
    with pytest.raises(UserError, match="missing.tsv not found"):
        probe.score_probe(inference, "test", tmp_path / "missing.tsv")


# --- the demo ---------------------------------------------------------------------------------------------------------


def test_only_an_earlier_demo_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    run.prepare_directory(directory)
    (directory / "old").touch()
    run.prepare_directory(directory)
    assert not (directory / "old").exists()
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit, match="not an earlier demo's"):
        run.prepare_directory(tmp_path)
    assert (tmp_path / "mine").exists()


def test_report_has_a_row_for_each_model() -> None:
    bleu = {"score": 76.64, "signature": "nrefs:1"}
    probes = {"test1": 0.5, "test2": 0.75, "test3": 0.3, "test4": 0.25, "test5": 1.0, "test6": 0.125}
    gates = {
        "majority_share": 0.7,
        "all": {"mean": 0.4, "variance": 0.12345, "mean_agreement": 0.61, "mean_hinge": 0.0123},
    }
    trap = {"majority_share": 0.8, "all": {"mean_agreement": 0.9}}
    rows = list(
        report.table_rows(
            {
                "plain": {"bleu": bleu, "probes": probes},
                "gated": {"bleu": bleu, "probes": probes, "gates": gates, "trap_gates": trap},
            }
        )
    )
    assert rows[0][:8] == ["model", "BLEU", "preceding", "distant", "address", "relations", "collocation", "unknown"]
    assert rows[1] == ["plain", "76.6", "0.50", "0.75", "0.30", "0.25", "1.00", "0.12", "—", "—", "—", "—", "—"]
    assert rows[2][8:] == ["0.400", "0.1235", "0.610", "0.0123", "0.900"]
    assert {len(row) for row in rows} == {13}


def test_commands_name_the_splits_that_fairseq_makes() -> None:
    (binarizing,) = (step for step in run.preparation().steps if step.what == "binarizing")
    names = binarizing.command.split("--testpref ")[1].split()[0].split(",")
    assert {f"test{number or ''}": Path(name).name for number, name in enumerate(names)} == {
        "test": "test",
        **{split: name for name, split in models.PROBES.items()},
    }
