"""From tokens to words and back: what a parser reads, and which tokens the words it names are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Sequence, Tuple

import pytest

from fairseq_ctxgates.data.data_directory import find_splits
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.corpus import SourceText, find_distinct_sentences
from fairseq_ctxgates.relations.extraction.extractor import (
    NotParsed,
    RelationExtractor,
    RelationTuple,
    relations_of_tokens,
)
from fairseq_ctxgates.relations.extraction.words import words_of_tokens
from tests.helpers.corpus import binarize
from tests.helpers.extractors import StubExtractor, make_extractor


@pytest.mark.parametrize(
    "row, remove_bpe, words, positions",
    [
        ("two men buy", "subword_nmt", "two men buy", [[0], [1], [2]]),
        ("t@@ w@@ o m@@ en", "subword_nmt", "two men", [[0, 1, 2], [3, 4]]),
        ("two m@@", "subword_nmt", "two m", [[0], [1]]),  # cut by --truncate-source, say
        ("m@@ en", "none", "m@@ en", [[0], [1]]),
        ("▁two ▁m en .", "sentencepiece", "two men.", [[0], [1, 2, 3]]),
        ("▁ two ▁men", "sentencepiece", "two men", [[0, 1], [2]]),
        ("tw o ▁men ▁", "sentencepiece", "two men", [[0, 1], [2]]),
        ("▁of▁the ▁men", "sentencepiece", "of the men", [[0], [0], [1]]),
        ("▁ ▁men", "sentencepiece", "men", [[0, 1]]),
        ("", "subword_nmt", "", []),
        ("", "sentencepiece", "", []),
    ],
)
def test_subwords_are_joined(row: str, remove_bpe: str, words: str, positions: List[List[int]]) -> None:
    found = words_of_tokens(row.split(" ") if row else [], remove_bpe)
    assert found.words == words.split()
    assert found.positions == positions
    assert not any(found.is_unknown)


@pytest.mark.parametrize(
    "row, remove_bpe, words, is_unknown",
    [
        ("a <unk> man", "subword_nmt", ["a", "unk", "man"], [False, True, False]),
        ("caf@@ <unk> now", "subword_nmt", ["caf", "now"], [True, False]),
        ("▁a ▁ <unk> ▁man", "sentencepiece", ["a", "unk", "man"], [False, True, False]),
        ("a &lt;unk&gt; man", "subword_nmt", ["a", "<unk>", "man"], [False, False, False]),
    ],
)
def test_an_unknown_word_stays_one_word(row: str, remove_bpe: str, words: List[str], is_unknown: List[bool]) -> None:
    found = words_of_tokens(row.split(), remove_bpe)
    assert found.words == words
    assert found.is_unknown == is_unknown


def test_escapes_are_undone_one_to_one() -> None:
    row = "&apos;s &quot; &amp; &#91; &#93; &lt; &gt; &#124; @-@ well@@ &apos;@@ s & @ a&b &amp;lt;"
    words = ["'s", '"', "&", "[", "]", "<", ">", "|", "-", "well's", "&", "@", "a&b", "&lt;"]
    found = words_of_tokens(row.split(), "subword_nmt")
    assert found.words == words
    assert found.positions == [[0], [1], [2], [3], [4], [5], [6], [7], [8], [9, 10, 11], [12], [13], [14], [15]]


class Parser(RelationExtractor):
    """Relates the first word with the last one, and treats sentences with some words as parsers do at times."""

    def __init__(self) -> None:
        self.requests: List[List[List[str]]] = []

    def parse(self, sentences: Sequence[Sequence[str]]) -> List[Tuple[List[str], List[RelationTuple]]]:
        self.requests.append([list(words) for words in sentences])
        if any("SLOW" in words for words in sentences):
            raise NotParsed("took too long")
        parsed: List[List[str]] = []
        for words in sentences:
            if "SPLIT" in words:
                middle = words.index("SPLIT")
                parsed += [list(words[:middle]), list(words[middle:])]
            elif "LOST" not in words:
                parsed.append(["can", "not"] if list(words) == ["CHANGED"] else list(words))
        return [(words, [RelationTuple([0], [], [len(words) - 1])]) for words in parsed]


def test_tuples_as_groups_of_token_positions() -> None:
    rows = [["f@@", "arm@@", "ers", "buy", "l@@", "amps"], [], ["run", "!"]]
    assert relations_of_tokens(Parser(), rows, "subword_nmt") == [[[0, 1, 2, 4, 5]], [], [[0, 1]]]


def test_tuples_of_words_of_sentencepiece() -> None:
    row = ["▁farm", "ers", "▁buy", "▁la", "mps"]
    assert relations_of_tokens(Parser(), [row], "sentencepiece") == [[[0, 1, 3, 4]]]


@pytest.mark.parametrize("bad", [["a", "SPLIT", "b"], ["CHANGED"], ["LOST"], ["SLOW", "a"]], ids=lambda words: words[0])
@pytest.mark.parametrize("place", range(4))
def test_what_comes_back_other_than_sent_is_nobodys(bad: List[str], place: int) -> None:
    """The sentences around it keep their tuples, it has none, and nothing moves to another row."""
    sentences = [["a", "b"], ["c", "d", "e"], ["f"]]
    expected = [[[0, 1]], [[0, 2]], [[0]]]
    sentences.insert(place, bad)
    assert Parser().extract(sentences) == [*expected[:place], None, *expected[place:]]


def test_two_errors_that_make_up_for_each_other_in_number() -> None:
    """One sentence is split in two and another is lost: as many come back as were sent."""
    sentences = [["a", "b"], ["a", "SPLIT", "b"], ["LOST"], ["c", "d", "e"]]
    assert Parser().extract(sentences) == [[[0, 1]], None, None, [[0, 2]]]


def test_a_row_that_cannot_be_parsed_has_no_relations() -> None:
    assert relations_of_tokens(Parser(), [["SLOW", "a"], ["b", "c"]], "none") == [[], [[0, 1]]]


def test_requests_are_limited_and_empty_sentences_are_not_sent() -> None:
    parser = Parser()
    sentences = [[f"w{row}", "x"] if row % 3 else [] for row in range(200)]
    assert parser.extract(sentences) == [[[0, 1]] if words else [] for words in sentences]
    assert [words for request in parser.requests for words in request] == [words for words in sentences if words]
    assert max(map(len, parser.requests)) == parser.sentences_at_once

    parser = Parser()
    parser.extract([["x" * 9000]] * 5)
    assert [len(request) for request in parser.requests] == [2, 2, 1]


def test_tuples_come_in_order_of_their_positions() -> None:
    unordered = StubExtractor(lambda words: [[1, 2, 3], [0, 2, 3], [0, 1, 3]])
    (found,) = unordered.extract_tuples([["a", "b", "c", "d"]])
    assert found == [([0], [1], [3]), ([0], [2], [3]), ([1], [2], [3])]


# Binarized data


def texts_of(folder: Path, remove_bpe: str = "subword_nmt", **sources: Sequence[str]) -> List[SourceText]:
    pairs = {name: [(source, "t") for source in lines] for name, lines in sources.items()}
    binarize(folder, pairs, "de", "en")
    return [SourceText(split, remove_bpe) for split in find_splits(folder, "de", "en")]


def test_the_source_of_a_split_as_words(tmp_path: Path) -> None:
    train, valid = texts_of(tmp_path, train=["t@@ wo men", "", "a &amp; b"], valid=["t@@ wo women"])
    assert [words.words for words in train] == [["two", "men"], [], ["a", "&", "b"]]
    assert [words.words for words in valid] == [["two", "unk"]]
    assert train[0].positions == [[0, 1], [2]]
    assert (len(train), len(valid)) == (3, 1)


def test_sentences_that_are_the_same_over_all_splits(tmp_path: Path) -> None:
    """As words: other subwords of the same words are the same sentence."""
    texts = texts_of(tmp_path, train=["a b", "a@@ b", "ab", "", "c"], valid=["c", "a b", "b", ""])
    numbers, places = find_distinct_sentences(texts)
    assert [row.tolist() for row in numbers] == [[0, 1, 1, 2, 3], [3, 0, 4, 2]]
    assert places.tolist() == [[0, 0], [0, 1], [0, 3], [0, 4], [1, 2]]


def test_sentences_with_characters_that_separate_nothing_are_different(tmp_path: Path) -> None:
    (numbers,), _ = find_distinct_sentences(texts_of(tmp_path, train=["a b", "a\0b", "a&#32;b", "a&#10;b"]))
    assert numbers.tolist() == [0, 1, 2, 3]


def test_data_of_sentencepiece_need_its_option(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dict.de.txt holds the subwords of sentencepiece.*--remove-bpe sentencepiece"):
        texts_of(tmp_path, train=["▁a ▁man s", "▁b"])
    (text,) = texts_of(tmp_path, "sentencepiece", train=["▁a ▁man s", "▁b"])
    assert [words.words for words in text] == [["a", "mans"], ["b"]]


WORDS = [f"w{number}" for number in range(95)]
PIECES = [*WORDS, "▁我", "▁a", "▁b", "▁c", "▁"]  # as in a language without spaces: a twentieth begins a word
PARTS = [*WORDS, "a@@", "b@@", "c@@", "d@@", "e@@"]


@pytest.mark.parametrize(
    ("types", "remove_bpe", "message"),
    [
        (PIECES, "subword_nmt", "holds the subwords of sentencepiece: give --remove-bpe sentencepiece"),
        (PIECES, "none", "holds the subwords of sentencepiece: give --remove-bpe sentencepiece"),
        (PARTS, "sentencepiece", "holds the subwords of subword_nmt: give --remove-bpe subword_nmt"),
        (PARTS, "none", "holds the subwords of subword_nmt: give --remove-bpe subword_nmt"),
        (
            WORDS,
            "sentencepiece",
            r"holds no subwords of sentencepiece \(no type begins with ▁\): leave out --remove-bpe",
        ),
    ],
)
def test_subwords_of_another_kind_are_refused(tmp_path: Path, types: List[str], remove_bpe: str, message: str) -> None:
    with pytest.raises(UserError, match=f"dict.de.txt {message}"):
        texts_of(tmp_path, remove_bpe, train=[" ".join(types)])


@pytest.mark.parametrize(
    ("types", "remove_bpe"),
    [
        (PIECES, "sentencepiece"),
        (PARTS, "subword_nmt"),
        (WORDS, "subword_nmt"),
        ([*WORDS, "▁▁▁"], "subword_nmt"),  # a gap to be filled in
        ([*WORDS, "@@"], "none"),
    ],
)
def test_a_stray_mark_is_no_subword(tmp_path: Path, types: List[str], remove_bpe: str) -> None:
    (text,) = texts_of(tmp_path, remove_bpe, train=[" ".join(types)])
    assert len(text) == 1


def test_a_dictionary_of_other_data(tmp_path: Path) -> None:
    texts_of(tmp_path, train=["a b c", "d e f"])
    (tmp_path / "dict.de.txt").write_text("a 1\nb 1\n")
    (split,) = find_splits(tmp_path, "de", "en")
    with pytest.raises(UserError, match=r"train.de-en.de.bin, row 1: .*token id 6.*dict.de.txt has 6 types: use"):
        list(SourceText(split, "none"))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ("corenlp", "en"),
            "'corenlp' is not a relation extractor: name one of corenlp-openie, corenlp-dependencies, stanza",
        ),
        (("corenlp-openie", "de"), "English only, not 'de': use corenlp-dependencies"),
        (("corenlp-dependencies", "eng"), "no models for the language 'eng': name one of .*en.*--language"),
        (("stanza", "en", ["http://localhost:9000"]), "leave out the addresses"),
    ],
)
def test_extractors_that_do_not_go_together_with_the_options(arguments: Tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_extractor(*arguments)
