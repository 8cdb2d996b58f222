"""Pointwise mutual information: counts, tables and labels, worked by hand and against a brute-force count."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import List, Optional, Sequence

import numpy as np
import pytest

from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.context_gates.pmi import counting
from fairseq_ctxgates.context_gates.pmi.counting import (
    OCCURRENCE_BYTES,
    CountingBlock,
    collect_types,
    count_block,
    count_tables,
)
from fairseq_ctxgates.context_gates.pmi.labelling import (
    TOKEN_BYTES,
    GateLabeller,
    SectionsOfLabels,
    label_split,
    labelling_blocks,
    load_labeller,
)
from fairseq_ctxgates.context_gates.pmi.sentences import Sentences, map_ids, text_files
from fairseq_ctxgates.context_gates.pmi.table import COUNTS, MEASURES, STRATEGIES, PMIOptions, PMITable, table_path
from fairseq_ctxgates.data.data_directory import find_splits
from fairseq_ctxgates.errors import UserError
from tests.helpers.corpus import binarize, make_dictionary, write_split
from tests.helpers.pmi import LABELS, PAIRS, BruteForce, count, dictionary, encode, random_pairs, training_splits

BILINGUAL = {
    "x a": math.log(16 * 3 / (7 * 6)),  # log 8/7
    "x b": math.log(16 * 2 / (7 * 5)),
    "x c": math.log(16 * 2 / (7 * 4)),  # log 8/7
    "x d": -math.inf,
    "y a": math.log(16 * 2 / (6 * 6)),  # log 8/9
    "y b": math.log(16 * 3 / (6 * 5)),  # log 8/5
    "y c": -math.inf,
    "y d": math.log(16 * 1 / (6 * 1)),  # log 8/3
    "z a": math.log(16 * 1 / (3 * 6)),  # log 8/9
    "z b": -math.inf,
    "z c": math.log(16 * 2 / (3 * 4)),  # log 8/3
}
MONOLINGUAL = {
    "x x": -math.inf,
    "x z": math.log(6 * 1 / (1 * 2)),  # log 3
    "y x": math.log(6 * 2 / (2 * 4)),  # log 3/2
    "y y": -math.inf,
    "z x": math.log(6 * 2 / (3 * 4)),  # log 1
    "z z": math.log(6 * 1 / (3 * 2)),  # log 1
}


def look_up(table: PMITable, folder: Path, context_lang: str, pairs: Sequence[str]) -> List[float]:
    """The PMI of each pair "word context", -inf for one that was not seen."""
    target, context = dictionary(folder, "en"), dictionary(folder, context_lang)
    found = {
        f"{target[word]} {context[other]}": pmi for word, other, pmi, _ in table.strongest(len(table), min_count=1)
    }
    return [found.get(pair, -math.inf) for pair in pairs]


def label(labeller: GateLabeller, folder: Path, source: str, target: str, words: Optional[str] = None) -> List[int]:
    """The labels of one sentence."""
    source_ids, target_ids = encode(folder, "de", source), encode(folder, "en", target)
    chosen = None if words is None else encode(folder, "en", words)
    source_sentence, target_sentence = (Sentences(ids, np.array([0, len(ids)])) for ids in (source_ids, target_ids))
    return labeller.label_sentences(source_sentence, target_sentence, chosen).tolist()


def rows(labels: SectionsOfLabels) -> List[List[int]]:
    return [row.tolist() for some, sizes in labels for row in np.split(some, np.cumsum(sizes)[:-1])]


def go_in_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """What is gone through in pieces because it may not fit in memory, in pieces of this size."""
    for name in ("counting.SENTENCES_AT_ONCE", "sentences.ROWS_AT_ONCE", "table.PAIRS_READ_AT_ONCE"):
        monkeypatch.setattr(f"fairseq_ctxgates.context_gates.pmi.{name}", size)


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return binarize(tmp_path_factory.mktemp("by_hand"), {"train": PAIRS}, "de", "en")


def test_tables_worked_by_hand(by_hand: Path) -> None:
    bilingual, monolingual = count(by_hand)
    assert (len(bilingual), bilingual.total) == (8, 16)
    assert (len(monolingual), monolingual.total) == (4, 6)
    assert look_up(bilingual, by_hand, "de", list(BILINGUAL)) == pytest.approx(list(BILINGUAL.values()), abs=1e-15)
    assert look_up(monolingual, by_hand, "en", list(MONOLINGUAL)) == pytest.approx(
        list(MONOLINGUAL.values()), abs=1e-15
    )


def test_labels_worked_by_hand(by_hand: Path) -> None:
    count(by_hand)
    assert rows(label_split(training_splits(by_hand)[0], by_hand)) == LABELS


def test_labels_of_a_sentence_and_of_words_predicted_in_it(by_hand: Path) -> None:
    labeller = GateLabeller(*count(by_hand))
    assert label(labeller, by_hand, "c c", "z x z") == LABELS[3]
    # After the same words stand others: y at the beginning was seen with no c; y after z was not seen either;
    # x after z and x is explained by z, log 3 > log 8/7.
    assert label(labeller, by_hand, "c c", "z x z", "y y x") == [IGNORE, IGNORE, TARGET, IGNORE]
    # y after x: max over a alone, log 8/9 < log 3/2. A word that training never had has no label.
    assert label(labeller, by_hand, "a", "x y new") == [SOURCE, TARGET, IGNORE, IGNORE]
    # z was never found with b, but it was after x.
    assert label(labeller, by_hand, "b", "x z") == [SOURCE, TARGET, IGNORE]


def test_a_tie_goes_to_the_target(tmp_path: Path) -> None:
    # u is found with the source word p and after the target word v in the same way: 1 of 4 pairs against 1 of 4.
    folder = binarize(tmp_path, {"train": [("p q", "v u")]}, "de", "en")
    labeller = GateLabeller(*count(folder))
    # Bilingual: Z = 4, C(u) = 2, C(p) = 2, C(u, p) = 1: log 1. Monolingual: Z = C(u) = C(v) = C(u, v) = 1: log 1.
    assert label(labeller, folder, "p q", "v u") == [SOURCE, TARGET, IGNORE]


def test_mean_is_taken_over_the_pairs_seen(by_hand: Path) -> None:
    labeller = GateLabeller(*count(by_hand, strategy="mean"))
    # Sentence 1, y: (log 8/9 + log 8/5) / 2 = log 1.19 < log 3/2, where the maximum said SOURCE. The source word c was
    # not seen with y, so it changes nothing; a once more does, to log 1.08.
    for source in ("a b", "a b c", "a b a"):
        labels = label(labeller, by_hand, source, "x y")
        assert labels == [SOURCE, TARGET, IGNORE]
    # y with b alone: log 8/5 > log 3/2.
    labels = label(labeller, by_hand, "c b", "x y")
    assert labels == [SOURCE, SOURCE, IGNORE]


def test_frequencies_of_tokens_in_place_of_marginals(by_hand: Path) -> None:
    bilingual, monolingual = count(by_hand, counts="frequency")
    # Tokens: a 3, b 3, c 3, d 1; x 4, y 3, z 3. Z stays 16 and 6.
    assert look_up(bilingual, by_hand, "de", ["x a", "y d", "z b"]) == pytest.approx(
        [math.log(16 * 3 / (4 * 3)), math.log(16 * 1 / (3 * 1)), -math.inf]
    )
    assert look_up(monolingual, by_hand, "en", ["x z", "y x"]) == pytest.approx(
        [math.log(6 * 1 / (4 * 3)), math.log(6 * 2 / (3 * 4))]
    )


def test_pmi_is_normalized_to_at_most_one(by_hand: Path, tmp_path: Path) -> None:
    bilingual, _ = count(by_hand, measure="npmi")
    assert look_up(bilingual, by_hand, "de", ["x a", "y d"]) == pytest.approx(
        [math.log(8 / 7) / -math.log(3 / 16), math.log(8 / 3) / -math.log(1 / 16)]
    )
    folder = binarize(tmp_path, {"train": [("a", "x")]}, "de", "en")
    assert look_up(count(folder, measure="npmi")[0], folder, "de", ["x a"]) == [1.0]  # P(x, a) = 1


def test_min_count_forgets_pairs_but_not_that_they_were_counted(by_hand: Path) -> None:
    bilingual, monolingual = count(by_hand, min_count=2)
    expected = {**BILINGUAL, "y d": -math.inf, "z a": -math.inf}
    assert look_up(bilingual, by_hand, "de", list(expected)) == pytest.approx(list(expected.values()))
    assert look_up(monolingual, by_hand, "en", ["x z", "z z", "z x", "y x"]) == pytest.approx(
        [-math.inf, -math.inf, 0.0, math.log(3 / 2)]
    )
    labeller = GateLabeller(bilingual, monolingual)
    # Sentence 4, x: nothing is known of x after z any more.
    labels = label(labeller, by_hand, "c c", "z x z")
    assert labels == [SOURCE, SOURCE, SOURCE, IGNORE]


@pytest.mark.parametrize("piece", [None, 1, 3])
def test_strongest_pairs(by_hand: Path, monkeypatch: pytest.MonkeyPatch, piece: Optional[int]) -> None:
    if piece is not None:
        go_in_pieces(monkeypatch, piece)
    bilingual, _ = count(by_hand)
    target, source = dictionary(by_hand, "en"), dictionary(by_hand, "de")
    found = [(target[y], source[x], round(math.exp(value) * 3), n) for y, x, value, n in bilingual.strongest(2, 1)]
    assert found == [("z", "c", 8, 2), ("y", "d", 8, 1)]  # both log 8/3, the more frequent first
    assert [(target[y], source[x]) for y, x, _, _ in bilingual.strongest(9, 3)] == [("y", "b"), ("x", "a")]


@pytest.mark.parametrize("piece", [None, 7])
@pytest.mark.parametrize("counts, strategy, measure", itertools.product(COUNTS, STRATEGIES, MEASURES))
def test_agrees_with_brute_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: str, strategy: str, measure: str, piece: Optional[int]
) -> None:
    if piece is not None:
        go_in_pieces(monkeypatch, piece)
    train, valid = random_pairs(150, seed=1), random_pairs(50, seed=2)
    folder = binarize(tmp_path, {"train": train, "valid": valid}, "de", "en")
    options = PMIOptions(counts, strategy, measure, min_count=2)
    expected = BruteForce(train, options)
    bilingual, monolingual = count_tables(training_splits(folder), folder, options)
    assert bilingual.total == sum(expected.bilingual.values())
    assert monolingual.total == sum(expected.monolingual.values())
    assert len(bilingual) == sum(n >= 2 for n in expected.bilingual.values())
    for split, pairs in zip(find_splits(folder, "de", "en"), (train, valid)):
        assert rows(label_split(split, folder)) == expected.labels(pairs)


@pytest.mark.process
@pytest.mark.parametrize("min_count", [1, 3])
def test_same_bytes_whatever_the_number_of_blocks_and_processes(tmp_path: Path, min_count: int) -> None:
    """Blocks of several types; of one type, counted in parts of the text; and sentences labelled one by one."""
    folder = binarize(tmp_path, {"train": random_pairs(30, seed=3)}, "de", "en")
    split = training_splits(folder)[0]
    results = []
    with ProcessPoolExecutor(2) as executor:
        for resources in ({}, {"memory": 2000}, {"memory": 1, "workers": 2, "executor": executor}):
            count_tables([split], folder, PMIOptions(min_count=min_count), **resources)
            tables = [table_path(folder, name, "de", "en").read_bytes() for name in ("bilingual", "monolingual")]
            results.append((*tables, rows(label_split(split, folder, **resources))))
    assert results[0] == results[1] == results[2]


def test_a_frequent_word_is_counted_in_parts(tmp_path: Path) -> None:
    """A type whose contexts do not fit in memory has a block of its own, which goes through the text in parts."""
    folder = binarize(tmp_path, {"train": random_pairs(400, seed=3)}, "de", "en")
    splits = training_splits(folder)
    widths = (len(splits[0].load_dictionary("de")), len(splits[0].load_dictionary("en")))
    statistics = collect_types(splits, tmp_path, widths)
    blocks = counting.counting_blocks(statistics, tmp_path, 1, widths, memory=2000, workers=1)
    in_parts = [block for block in blocks if block.parts > 1]
    assert in_parts and all(len(block.occurrences) == 1 for block in in_parts)
    assert all(400 / block.parts * OCCURRENCE_BYTES <= 2000 for block in in_parts)
    whole = [block for block in blocks if block.parts == 1]
    assert all(block.occurrences.sum() * OCCURRENCE_BYTES <= 2000 for block in whole)
    for block in in_parts:
        written = [count_block(replace(block, parts=parts)) and contents_of(block) for parts in (1, block.parts)]
        assert written[0] == written[1]


def contents_of(block: CountingBlock) -> List[bytes]:
    """The files with the pairs of a block."""
    return [
        block.part_path(name, array).read_bytes()
        for name in counting.TABLE_NAMES
        for array in ("columns", "pair_counts")
    ]


def test_a_frequent_word_is_labelled_in_sections(tmp_path: Path) -> None:
    """Each block fits in a small memory, also where one part of the text is unlike the other."""
    long = [("a b " * 10, " ".join(["the"] * 21))] * 60
    folder = binarize(tmp_path, {"train": [*random_pairs(400, seed=3), *long]}, "de", "en")
    split, memory, workers = training_splits(folder)[0], 40_000, 2
    assert 60 * 21 * TOKEN_BYTES > memory
    blocks = labelling_blocks(split, folder, tmp_path, text_files(split, tmp_path), memory, workers)
    in_order = [block for section in blocks for block in section]
    assert max(block.occurrences.sum() for block in in_order) * TOKEN_BYTES <= memory / 2 / workers
    assert sum(block.occurrences.sum() for block in in_order) == len(map_ids(split.text_prefix("en")))
    bounds = [section[0].sentences for section in blocks]
    assert (bounds[0][0], bounds[-1][1]) == (0, 460)
    assert all(before[1] == after[0] for before, after in zip(bounds, bounds[1:]))


@pytest.mark.slow
def test_a_vocabulary_that_needs_more_than_16_bits(tmp_path: Path) -> None:
    for side, lang in enumerate(("de", "en")):
        words = make_dictionary([f"unused{number}" for number in range(1 << 16)])
        for word in ("a", "b", "x", "y", "z", "c", "d"):
            words.add_symbol(word)
        words.save(str(tmp_path / f"dict.{lang}.txt"))
        write_split(tmp_path / f"train.de-en.{lang}", [pair[side] for pair in PAIRS], words)
    bilingual, monolingual = count(tmp_path)
    assert bilingual.counts.columns.min() >= 1 << 16
    assert look_up(bilingual, tmp_path, "de", list(BILINGUAL)) == pytest.approx(list(BILINGUAL.values()))
    assert look_up(monolingual, tmp_path, "en", list(MONOLINGUAL)) == pytest.approx(list(MONOLINGUAL.values()))
    assert rows(label_split(training_splits(tmp_path)[0], tmp_path)) == LABELS


def test_tables_can_be_read_by_numpy_and_scipy(by_hand: Path) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    count(by_hand)
    with np.load(table_path(by_hand, "bilingual", "de", "en"), allow_pickle=False) as arrays:
        shape = (len(arrays["row_counts"]), len(arrays["column_counts"]))
        counts = scipy_sparse.csr_matrix((arrays["pair_counts"], arrays["columns"], arrays["row_start"]), shape)
        assert counts.sum(axis=1).ravel().tolist()[0] == arrays["row_counts"].tolist()
        assert counts.sum(axis=0).tolist()[0] == arrays["column_counts"].tolist()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "missing"])
def test_a_damaged_table_is_refused(by_hand: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "pmi.bilingual.de-en.npz"
    count(by_hand)
    data = bytearray((by_hand / path.name).read_bytes())
    data[data.index(b'"options"')] ^= damage == "flipped"  # between the arrays there is padding
    path.write_bytes(data[: {"truncated": len(data) - 40, "empty": 0}.get(damage)])
    if damage == "missing":
        path.unlink()
    with pytest.raises(UserError, match=r"pmi\.bilingual\.de-en\.npz.*gate-labels"):
        PMITable.load(path)


def test_a_labeller_is_refused_for_other_data(tmp_path: Path) -> None:
    folder = binarize(tmp_path, {"train": PAIRS, "test": PAIRS[:2]}, "de", "en")
    count(folder)
    labeller = load_labeller(folder, "de", "en")
    assert label(labeller, folder, "a b", "x y") == LABELS[0]
    binarize(folder, {"train": PAIRS[::-1], "test": PAIRS[:2]}, "de", "en")
    with pytest.raises(UserError, match="other data than .*train holds"):
        load_labeller(folder, "de", "en")
    binarize(folder, {"train": [*PAIRS, ("e", "w")], "test": PAIRS[:2]}, "de", "en")
    with pytest.raises(UserError, match="other dictionaries"):
        load_labeller(folder, "de", "en")


def test_tables_of_different_runs_are_refused(by_hand: Path) -> None:
    count(by_hand)
    monolingual = table_path(by_hand, "monolingual", "de", "en").read_bytes()
    count(by_hand, measure="npmi")
    table_path(by_hand, "monolingual", "de", "en").write_bytes(monolingual)
    with pytest.raises(UserError, match="not made together"):
        load_labeller(by_hand, "de", "en")


def test_ids_that_the_tables_do_not_have(by_hand: Path) -> None:
    labeller = GateLabeller(*count(by_hand))
    with pytest.raises(ValueError, match="token ids"):
        labeller.label_sentences(
            Sentences(np.array([4]), np.array([0, 1])), Sentences(np.array([99]), np.array([0, 1]))
        )
