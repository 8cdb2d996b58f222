"""``ctxgates relations`` without CoreNLP: what it reads, writes, prints and refuses; and how it goes on."""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import numpy as np
import pytest

import ctxgates
from fairseq_ctxgates.commands.relations import RelationStatistics, main
from fairseq_ctxgates.data.data_directory import load_rows
from fairseq_ctxgates.data.side_stream_files import SideStreamWriter
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction import shards
from fairseq_ctxgates.relations.mask import END_OF_TUPLE
from tests.helpers.corpus import binarize
from tests.helpers.extractors import StubExtractor
from tests.helpers.files import files_of

SOURCES = [
    "the f@@ arm@@ ers buy l@@ amps .",
    "",
    "rain falls .",
    "the f@@ arm@@ ers buy l@@ amps .",
    "&quot; no &quot;",
]
VALID = ["rain falls .", "BAD words here .", "they buy lamps ."]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_data(tmp_path / "data", train=SOURCES, valid=VALID)


def make_data(folder: Path, **sources: Sequence[str]) -> Path:
    """A data directory of splits with these sources; the words of all are known."""
    splits = {name: [(source, "t") for source in lines] for name, lines in sources.items()}
    everything = [pair for pairs in splits.values() for pair in pairs]
    binarize(folder, {**splits, "train-words": everything}, "de", "en")
    for path in folder.glob("train-words.*"):
        path.unlink()
    return folder


@pytest.fixture
def parser(extractor: StubExtractor, monkeypatch: pytest.MonkeyPatch) -> StubExtractor:
    """Finds in each sentence of three words and more all but the last one; fails where one is BAD."""
    extractor.find = lambda words: [list(range(len(words) - 1))] if len(words) > 2 else []
    extractor.fails = lambda text: "BAD" in text.split()
    monkeypatch.setattr(shards, "SHARD_SENTENCES", 2)
    return extractor


def run(data: Any, *options: Any) -> None:
    main([str(data), "--source-lang", "de", "--target-lang", "en", *map(str, options)])


def tuples_of(folder: Path, split: str = "train", pair: str = "de-en") -> List[List[List[int]]]:
    """The groups of token positions of each row of a stream."""
    found = []
    for row in load_rows(folder / f"{split}.relation.{pair}"):
        groups: List[List[int]] = [[]]
        for number in row.tolist():
            if number == END_OF_TUPLE:
                groups.append([])
            else:
                groups[-1].append(number)
        found.append(groups[:-1])
    return found


def reported(output: str) -> Dict[str, List[str]]:
    """The numbers printed for each stream."""
    return {line.split()[0].split("/")[-1]: line.split()[1:] for line in output.splitlines() if ".relation." in line}


# Extraction

TRAIN_TUPLES = [[[0, 1, 2, 3, 4, 5, 6]], [], [[0, 1]], [[0, 1, 2, 3, 4, 5, 6]], [[0, 1]]]
VALID_TUPLES = [[[0, 1]], [], [[0, 1, 2]]]
# The sentences of train that can be parsed, each once, as the parser is sent them.
TRAIN_SENTENCES = ["the farmers buy lamps .", "rain falls .", '" no "']
STOPS = {"interrupt": KeyboardInterrupt, "terminate": SystemExit, "lost parser": UserError, "full disk": UserError}


@pytest.mark.parametrize("workers", [1, 3])
def test_every_split_gets_its_tuples_as_positions_of_tokens(
    data: Path, parser: StubExtractor, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    before = files_of(data)
    run(data, "--workers", workers)
    assert tuples_of(data) == TRAIN_TUPLES
    assert tuples_of(data, "valid") == VALID_TUPLES
    written = {f"{split}.relation.de-en.{end}" for split in ("train", "valid") for end in ("bin", "idx", "json")}
    assert set(files_of(data)) - set(before) == written
    assert not list(data.glob(".relation.*"))
    metadata = json.loads((data / "train.relation.de-en.json").read_text())
    assert metadata["options"] == {
        "extractor": "corenlp-openie",
        "language": "de",
        "remove_bpe": "subword_nmt",
        "properties": [],
    }
    assert set(metadata["fingerprint"]) == {"source"}
    # Sentences, tuples each, with a tuple, words, in a tuple, not parsed
    printed = capsys.readouterr()
    assert reported(printed.out) == {
        "train.relation.de-en": ["5", "0.80", "80.0%", "16", "75.0%", "0"],
        "valid.relation.de-en": ["3", "0.67", "66.7%", "11", "45.5%", "1"],
    }
    assert "not parsed: the parser failed" in printed.out
    assert "sentences/s" in printed.err


def test_sentences_that_are_the_same_are_parsed_once(data: Path, parser: StubExtractor) -> None:
    run(data)
    assert sorted(parser.parsed) == sorted(["the farmers buy lamps .", "rain falls .", '" no "', "they buy lamps ."])
    assert parser.is_closed


def test_under_the_name_ctxgates_and_in_the_other_direction(data: Path, parser: StubExtractor) -> None:
    ctxgates.main(["relations", str(data), "-s", "en", "-t", "de"])
    assert tuples_of(data, pair="en-de") == [[]] * 5
    assert parser.parsed == ["t"]


def test_several_data_directories(
    data: Path, tmp_path: Path, parser: StubExtractor, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_data(tmp_path / "other", train=["rain falls .", "a b c d"])
    run(f"{data}:{other}", "--dump", f"{tmp_path / '1'}:{tmp_path / '2'}")
    assert tuples_of(data) == TRAIN_TUPLES
    assert tuples_of(other) == [[[0, 1]], [[0, 1, 2]]]
    assert parser.parsed.count("rain falls .") == 1
    assert len((tmp_path / "1").read_text().splitlines()) == 8
    assert len((tmp_path / "2").read_text().splitlines()) == 2


def test_data_that_are_text(tmp_path: Path, parser: StubExtractor) -> None:
    """--dataset-impl raw"""
    data = make_data(tmp_path / "data", train=SOURCES)
    for path in data.glob("train.de-en.*"):
        path.unlink()
    for lang, lines in (("de", SOURCES), ("en", ["t"] * len(SOURCES))):
        (data / f"train.de-en.{lang}").write_text("\n".join(lines) + "\n")
    run(data)
    assert tuples_of(data) == TRAIN_TUPLES


def test_a_corpus_without_a_word(tmp_path: Path, parser: StubExtractor) -> None:
    data = make_data(tmp_path / "data", train=["", ""], valid=["a b c"])
    run(data)
    assert tuples_of(data) == [[], []]
    assert tuples_of(data, "valid") == [[[0, 1]]]


# Interrupted work


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stop", ["interrupt", "terminate", "lost parser", "full disk"])
def test_an_interrupted_run_goes_on_where_it_stopped(
    data: Path,
    tmp_path: Path,
    parser: StubExtractor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stop: str,
    workers: int,
) -> None:
    """Nothing is written before all is done, nothing is parsed twice, and the result is the same byte for byte."""
    whole = make_data(tmp_path / "whole", train=SOURCES, valid=VALID)
    run(whole)
    parser.parsed.clear()
    before, extract_shard, finished = files_of(data), shards.extract_shard, itertools.count(1)

    def stopped(shard: shards.Shard, **given: Any) -> shards.Outcome:
        outcome = extract_shard(shard, **given)
        if next(finished) == 2:
            if stop == "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
                return outcome
            raise {
                "interrupt": KeyboardInterrupt(),
                "lost parser": UserError("no server"),
                "full disk": OSError(28, "No space left on device"),
            }[stop]
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(shards, "extract_shard", stopped)
        with pytest.raises(STOPS[stop]):
            run(data, "--workers", workers)
    assert files_of(data) == before
    assert parser.is_closed
    (folder,) = data.glob(".relation.*")
    kept = [path for path in folder.iterdir() if "." not in path.name]
    assert len(kept) >= 2

    capsys.readouterr()
    run(data)
    assert len(parser.parsed) == len(set(parser.parsed)) == 4
    assert not folder.exists()
    for name, content in files_of(whole).items():
        assert files_of(data)[name] == content


def test_half_a_shard_is_not_taken_for_a_whole_one(
    data: Path, parser: StubExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *paths: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            run(data)
    (folder,) = data.glob(".relation.*")
    assert not list(folder.iterdir())


def test_work_with_other_options_is_not_taken_up(
    data: Path, parser: StubExtractor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fairseq_ctxgates.commands.relations.write_streams", interrupted)
        run(data)
    (folder,) = data.glob(".relation.*")
    parser.parsed.clear()
    run(data, "--corenlp-property", "depparse.model=other")
    assert "the farmers buy lamps ." in parser.parsed
    assert f"{folder}: shards of an interrupted run" in capsys.readouterr().out
    assert folder.exists()


@pytest.mark.parametrize("is_interrupted", [True, False], ids=["shards", "streams"])
def test_what_was_made_from_other_data_is_not_taken_up(
    data: Path, parser: StubExtractor, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """The same sentences in another order, under the same names."""

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        if is_interrupted:
            patch.setattr("fairseq_ctxgates.commands.relations.write_streams", interrupted)
        run(data)
    make_data(data, train=SOURCES[::-1], valid=VALID)
    run(data)
    assert tuples_of(data) == TRAIN_TUPLES[::-1]


def test_interrupted_writing_leaves_the_old_streams(
    data: Path, parser: StubExtractor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(data)
    before = files_of(data)

    def add(writer: SideStreamWriter, row: np.ndarray) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SideStreamWriter, "add", add)
    with pytest.raises(UserError, match="No space left"):
        run(data, "--dump", tmp_path / "dump")
    assert files_of(data) == before
    assert not (tmp_path / "dump").exists()


# Streams that were made before


def test_a_test_set_that_is_added_is_parsed_alone(
    tmp_path: Path, parser: StubExtractor, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(tmp_path / "data", train=SOURCES, valid=VALID, test=["farmers like rain ."])
    later = tmp_path / "later"
    later.mkdir()
    for path in data.glob("test.*"):
        path.rename(later / path.name)
    run(data)
    before = files_of(data)
    for path in later.iterdir():
        path.rename(data / path.name)
    parser.parsed.clear()
    capsys.readouterr()
    run(data)
    printed = capsys.readouterr().out
    assert parser.parsed == ["farmers like rain ."]
    assert "test.relation.de-en" in reported(printed)
    for split in ("train", "valid"):
        assert f"{data}/{split}.relation.de-en: kept, made before with the same options" in printed
    assert {name: files_of(data)[name] for name in before} == before
    run(data)
    assert parser.parsed == ["farmers like rain ."]


@pytest.mark.parametrize("change", ["other options", "a damaged stream", "a removed JSON file", "a dump"])
def test_what_is_not_the_same_is_parsed_again(data: Path, tmp_path: Path, parser: StubExtractor, change: str) -> None:
    run(data)
    parser.parsed.clear()
    if change == "a damaged stream":
        with open(data / "train.relation.de-en.bin", "ab") as file:
            file.write(b"x")
    if change == "a removed JSON file":
        (data / "train.relation.de-en.json").unlink()
    options: Dict[str, Sequence[object]] = {
        "other options": ["--corenlp-property", "threads=1"],
        "a dump": ["--dump", tmp_path / "dump"],
    }
    run(data, *options.get(change, []))
    of_valid = ["they buy lamps ."] if change in ("other options", "a dump") else []
    assert sorted(parser.parsed) == sorted([*TRAIN_SENTENCES, *of_valid])
    assert tuples_of(data) == TRAIN_TUPLES


# Tuples as lines of JSON


def line(words: str, *tuples: Any, **more: Any) -> str:
    entries = [dict(zip(("subject", "relation", "object"), entry)) for entry in tuples]
    return json.dumps({"words": words.split(), "tuples": entries, **more}, ensure_ascii=False)


def write(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{entry}\n" for entry in lines), encoding="utf-8")
    return path


TRAIN_LINES = [
    line("the farmers buy lamps .", ([1], [2], [3]), ([0], [2], [3])),
    line(""),
    line("rain falls ."),
    line("the farmers buy lamps .", ([1], [2], [])),
    line("&quot; no &quot;", ([0], [], [2])),
]


def test_tuples_of_a_file(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the same words may have tuples of their own; words may be escaped or not."""
    run(data, "--extractor", "jsonl", "--relations", f"train={write(tmp_path / 'train.jsonl', TRAIN_LINES)}")
    assert tuples_of(data) == [[[1, 2, 3, 4, 5, 6], [0, 4, 5, 6]], [], [], [[1, 2, 3, 4]], [[0, 2]]]
    assert not list(data.glob("valid.relation.*"))
    assert f"{data}/valid: not named, no stream written" in capsys.readouterr().out


def test_a_dump_can_be_read_by_people_and_back(data: Path, tmp_path: Path, parser: StubExtractor) -> None:
    dump = tmp_path / "tuples.jsonl"
    run(data, "--dump", dump)
    expected = files_of(data)
    first, *_, last = map(json.loads, dump.read_text(encoding="utf-8").splitlines())
    assert first == {
        "split": "train",
        "words": ["the", "farmers", "buy", "lamps", "."],
        "tuples": [{"subject": [0], "relation": [1], "object": [2, 3]}],
        "text": ["the | farmers | buy lamps"],
    }
    assert last["split"] == "valid"
    packed = tmp_path / "tuples.jsonl.gz"
    packed.write_bytes(gzip.compress(dump.read_bytes()))
    again = tmp_path / "again.jsonl.gz"
    run(data, "--extractor", "jsonl", "--relations", f"train={dump}", f"valid={packed}", "--dump", again)
    assert gzip.decompress(again.read_bytes()) == dump.read_bytes()
    assert {name for name, content in files_of(data).items() if content != expected[name]} == {
        "train.relation.de-en.json",  # says where they came from
        "valid.relation.de-en.json",
    }


def test_a_dump_of_words_that_were_escaped_twice_can_be_read_back(tmp_path: Path, parser: StubExtractor) -> None:
    """Such as those of a corpus that went through Moses' tokenizer twice."""
    data = make_data(tmp_path / "data", train=["&amp;quot; no &amp;quot; &quot;"])
    dump = tmp_path / "tuples.jsonl"
    run(data, "--dump", dump)
    assert json.loads(dump.read_text(encoding="utf-8"))["words"] == ["&quot;", "no", "&quot;", '"']
    run(data, "--extractor", "jsonl", "--relations", f"train={dump}")


def test_a_byte_order_mark(data: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", TRAIN_LINES)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    run(data, "--extractor", "jsonl", "--relations", f"train={path}")
    assert tuples_of(data)[0] == [[1, 2, 3, 4, 5, 6], [0, 4, 5, 6]]


def test_the_tuples_of_the_quick_start(tmp_path: Path) -> None:
    """As its generator writes them, where an unknown word stands as <unk>."""
    data = make_data(tmp_path / "data", train=["red <unk> fall daily .", "farmers judges buy wash lamps boxes ."])
    tuples = [line("red <unk> fall daily ."), line("farmers judges buy wash lamps boxes .", ([0], [3], [4]))]
    run(data, "--extractor", "jsonl", "--relations", f"train={write(tmp_path / 'tuples', tuples)}")
    assert tuples_of(data) == [[], [[0, 3, 4]]]


def test_an_unknown_word_stands_for_any(tmp_path: Path) -> None:
    data = binarize(tmp_path / "data", {"train": [("a b", "t")], "valid": [("a zebra b", "t")]}, "de", "en")
    tuples = write(tmp_path / "tuples", [line("a zebra b", ([0], [1], [2]))])
    run(data, "--extractor", "jsonl", "--relations", f"valid={tuples}")
    assert tuples_of(data, "valid") == [[[0, 1, 2]]]


def test_a_word_that_an_unknown_subword_splits_leaves_the_sentence_without_tuples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The unknown subword has no mark that says that the word goes on; other sentences keep their tuples."""
    rows = [("chi@@ ll@@ ing out", "t"), ("a chi@@ zz@@ ing b", "t"), ("chi@@ ll@@ ing out", "t")]
    data = binarize(tmp_path / "data", {"train": [rows[0]], "valid": rows}, "de", "en")
    words = ["chilling out", "a chizzing b", "chilling out"]
    tuples = write(tmp_path / "tuples", [line(sentence, ([0], [1], [])) for sentence in words])
    run(data, "--extractor", "jsonl", "--relations", f"valid={tuples}")
    assert tuples_of(data, "valid") == [[[0, 1, 2, 3]], [], [[0, 1, 2, 3]]]
    assert "an unknown subword splits a word" in capsys.readouterr().out


def test_an_unknown_subword_without_its_mark_leaves_the_sentence_without_tuples(tmp_path: Path) -> None:
    """The rest of its word is then a word of its own in the row."""
    rows = [("chi@@ ll@@ ing out", "t"), ("a zz ing b", "t")]
    data = binarize(tmp_path / "data", {"train": [rows[0], ("ing", "t"), ("a b", "t")], "valid": rows}, "de", "en")
    tuples = write(tmp_path / "tuples", [line(text, ([0], [1], [])) for text in ("chilling out", "a chizzing b")])
    run(data, "--extractor", "jsonl", "--relations", f"valid={tuples}")
    assert tuples_of(data, "valid") == [[[0, 1, 2, 3]], []]


# What is refused: a message, and nothing written


def refused(data: Path, message: str, *options: Any) -> None:
    before = files_of(data)
    with pytest.raises(UserError, match=message):
        run(data, *options)
    assert files_of(data) == before


@pytest.mark.parametrize(
    "number, replacement, message",
    [
        (3, "rain falls .", "line 3: Expecting value.*lines look like"),
        (3, '["rain", "falls", "."]', "line 3: a line must be an object"),
        (
            3,
            line("rain fell ."),
            r"line 3: the words are \['rain', 'fell', '.'\], but the words of .*data/train, row 3,.* is word 1,",
        ),
        (3, line("rain falls"), "line 3: the words are"),
        (3, '{"tuples": []}', "line 3: the words are None"),
        (3, '{"words": ["rain", "falls", "."]}', "line 3: a line must be an object with words and tuples"),
        (
            3,
            line("rain falls .", tupels=[]),
            r"line 3: unknown keys \['tupels'\]; a line has split, words, tuples, text",
        ),
        (3, '{"words": ["rain", "falls", "."], "tuples": [{"subj": [0]}]}', "line 3: a tuple must be "),
        (3, '{"words": ["rain", "falls", "."], "tuples": [{"subject": [0]}]}', "line 3: a tuple must be "),
        (1, line("the farmers buy lamps .", ([1], [2], [5])), "line 1: .*names the word 5, but the 5 words"),
        (1, line("the farmers buy lamps .", ([-1], [2], [3])), "line 1: .*names the word -1"),
        (1, line("the farmers buy lamps .", ([1.0], [2], [3])), "line 1: .*names the word 1.0"),
        (1, line("the farmers buy lamps .", ([True], [2], [3])), "line 1: .*names the word True"),
        (1, line("the farmers buy lamps .", ("farmers", [2], [3])), "line 1: .*names the word"),
        (1, line("the farmers buy lamps .", (1, 2, 3)), "line 1: a tuple must be "),
        (1, '{"words": ["the", "farmers", "buy", "lamps", "."], "tuples": [[0, 1]]}', "line 1: a tuple must be "),
    ],
)
def test_lines_that_do_not_fit(data: Path, tmp_path: Path, number: int, replacement: str, message: str) -> None:
    lines = [replacement if place == number else entry for place, entry in enumerate(TRAIN_LINES, 1)]
    path = write(tmp_path / "train.jsonl", lines)
    valid = write(tmp_path / "valid.jsonl", [line(words) for words in VALID])
    refused(data, f"{path}, {message}", "--extractor", "jsonl", "--relations", f"valid={valid}", f"train={path}")


@pytest.mark.parametrize(
    "row, words",
    [
        ("a chi@@ zz@@ ing b c", "other words than these"),
        ("a chi@@ zz@@ ing b c", "a chizzing b other"),
        ("a chi@@ zz@@ ing b c", "other chizzing b c"),
        ("a chi@@ zz@@ ing b c", "a"),
        ("a b c", "a b"),
    ],
)
def test_an_unknown_subword_does_not_excuse_other_words(tmp_path: Path, row: str, words: str) -> None:
    """Those that it cannot have changed are compared."""
    data = binarize(tmp_path / "data", {"train": [("a b c chi@@ ing", "t")], "valid": [(row, "t")]}, "de", "en")
    path = write(tmp_path / "valid.jsonl", [line(words)])
    refused(data, f"{path}, line 1: the words are", "--extractor", "jsonl", "--relations", f"valid={path}")


@pytest.mark.parametrize("lines, have", [(TRAIN_LINES[:-1], "only 4"), ([*TRAIN_LINES, line("a")], "more than 5")])
def test_another_number_of_lines(data: Path, tmp_path: Path, lines: List[str], have: str) -> None:
    path = write(tmp_path / "train.jsonl", lines)
    message = f"{path} has tuples of {have} sentences, but {data}/train has 5"
    refused(data, message, "--extractor", "jsonl", "--relations", f"train={path}")


def test_lines_of_other_splits(data: Path, tmp_path: Path) -> None:
    lines = [{**json.loads(text), "split": name} for text, name in zip(TRAIN_LINES, [None, "train", *["valid"] * 3])]
    path = write(tmp_path / "train.jsonl", map(json.dumps, lines))
    message = rf"{path} has tuples of only 2 sentences \(its other lines name the split valid\), but {data}/train has 5"
    refused(data, message, "--extractor", "jsonl", "--relations", f"train={path}")


def test_tuples_without_words_are_not_counted(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty: Tuple[List[int], ...] = ([], [], [])
    both, none = line("the farmers buy lamps .", empty, ([0], [1], [2])), line("rain falls .", empty)
    lines = [both, line(""), none, *TRAIN_LINES[3:]]
    run(data, "--extractor", "jsonl", "--relations", f"train={write(tmp_path / 'train.jsonl', lines)}")
    numbers = reported(capsys.readouterr().out)["train.relation.de-en"]
    assert numbers == ["5", "0.60", "60.0%", "16", "43.8%", "0"]  # 3 of 5 sentences, 3 + 2 + 2 of 16 words


def test_files_that_cannot_be_read(data: Path, tmp_path: Path) -> None:
    for name, content in (
        ("latin", "\xfc".encode("latin-1")),
        ("half.gz", gzip.compress(b"{}")[:-9]),
        ("no.gz", b"{}"),
    ):
        (tmp_path / name).write_bytes(content)
        refused(data, f"{name}, line 1: ", "--extractor", "jsonl", "--relations", f"train={tmp_path / name}")
    refused(data, "nowhere not found: check", "--extractor", "jsonl", "--relations", f"train={tmp_path / 'nowhere'}")


@pytest.mark.parametrize(
    "options, message",
    [
        (("--extractor", "jsonl"), "--extractor jsonl reads tuples from files: give --relations SPLIT=FILE"),
        (("--extractor", "jsonl", "--relations", "test=x"), "data has no such split; its splits are train, valid"),
        (("--extractor", "jsonl", "--relations", "train=x", "train=x"), "names train twice"),
        (("--extractor", "jsonl", "--relations", "train=x:y"), "2 files for 1 data directories"),
        (("--dump", "a:b"), "2 files for 1 data directories"),
        (("--dump", "/nowhere/at/all"), "an existing folder"),
        (("--extractor", "corenlp-openie"), "supports English only, not 'de'"),
        (("--extractor", "corenlp-openie", "--language", "fr"), "supports English only, not 'fr'"),
        (("--extractor", "corenlp-dependencies", "--language", "nn"), "no models for the language 'nn'"),
    ],
)
def test_options_that_do_not_go_together(data: Path, options: Tuple[str, ...], message: str) -> None:
    refused(data, message, *options)


@pytest.mark.parametrize(
    "options",
    [
        ("--timeout", "0"),
        ("--timeout", "soon"),
        ("--timeout", "nan"),
        ("--corenlp-property", "depparse.model"),
        ("--remove-bpe", "characters"),
        ("--extractor", "openie"),
        ("--workers", "0"),
    ],
    ids=" ".join,
)
def test_options_that_say_nothing(data: Path, options: Tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(data, *options)
    assert options[0] in capsys.readouterr().err


def test_without_java_and_without_corenlp(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORENLP_HOME", str(tmp_path / "nowhere"))
    options = ("--extractor", "corenlp-openie", "--language", "en")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.which", lambda program: None)
        refused(data, "Java is not on PATH", *options)
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}")
    refused(data, r"CoreNLP is not installed: run `make corenlp`.*stanza.install_corenlp\(\).*CORENLP_HOME", *options)
    (tmp_path / "nowhere").mkdir()
    refused(data, "nowhere does not contain CoreNLP: run `make corenlp`", *options)


def test_a_sentence_on_which_the_parser_fails_is_not_too_long() -> None:
    statistics = RelationStatistics()
    statistics.add(["a"], None)
    assert (statistics.not_parsed, statistics.too_long) == (1, 0)


def test_properties_in_another_order_are_the_same(
    data: Path, parser: StubExtractor, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = ("--corenlp-property", "a=1"), ("--corenlp-property", "b=2")
    run(data, *first, *second)
    parser.parsed.clear()
    run(data, *second, *first)
    assert not parser.parsed
    assert f"{data}/train.relation.de-en: kept" in capsys.readouterr().out
