"""Bad inputs of the commands that add streams to data directories, and of ``ctxgates average-checkpoints``."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Callable, Dict, Sequence

import torch

from fairseq_ctxgates.checkpoints.loading import load
from tests.reliability.bad_inputs.row import (
    LENGTHS,
    NO_PARAMETERS,
    ROWS,
    TYPE,
    VERSION,
    Change,
    Rows,
    append,
    bad_file,
    bad_usage,
    bad_value,
    copy,
    cut,
    edit,
    edit_lines,
    folder,
    nothing,
    put,
    remove,
    save,
    several,
    swap_pointers,
    write,
)

LANGUAGES = "-s de -t en"
LABELS = f"ctxgates gate-labels data {LANGUAGES}"
PRECEDING = f"ctxgates preceding-sentences data {LANGUAGES}"
TEXT, INDEX, DICTIONARY = "data/train.de-en.en.bin", "data/train.de-en.en.idx", "data/dict.en.txt"

# --- options that all three commands have -----------------------------------------------------------------------------

DIRECTORIES: Rows = (
    bad_usage("no command", "ctxgates", "the following arguments are required: COMMAND"),
    bad_usage("an unknown command", "ctxgates gate-label data", "invalid choice: 'gate-label'"),
    bad_usage("options of user-dir", "ctxgates user-dir data", "unrecognized arguments: data"),
    bad_usage("no directory", "ctxgates gate-labels", "required: data"),
    bad_usage("an unknown option", f"{LABELS} --sauce", "unrecognized arguments: --sauce"),
    bad_usage("an option without its value", f"{LABELS} --min-count", "--min-count: expected one argument"),
    bad_value(
        "a directory that is not there", f"ctxgates gate-labels nowhere {LANGUAGES}", "nowhere is not", "--destdir"
    ),
    bad_value(
        "a second directory that is not there", f"ctxgates gate-labels data:nowhere {LANGUAGES}", "nowhere is not"
    ),
    bad_value("a directory below a file", f"ctxgates gate-labels train.de/data {LANGUAGES}", "train.de/data is not"),
    bad_value("a file for a directory", f"ctxgates gate-labels train.de {LANGUAGES}", "train.de is not a directory"),
    bad_value("a directory without data", "ctxgates gate-labels models", "models holds no data of any", "--destdir"),
    bad_value("a directory twice", f"ctxgates gate-labels data:models/../data {LANGUAGES}", "data is named twice"),
    bad_value("an empty name", f"ctxgates gate-labels '' {LANGUAGES}", "language pair de-en"),
    bad_value("a name too long", f"ctxgates gate-labels {'a' * 300} {LANGUAGES}", "aaa: File name too long"),
    bad_value(
        "another source language", "ctxgates gate-labels data -s fr -t en", "language pair fr-en", "--source-lang"
    ),
    bad_value("another target language", "ctxgates gate-labels data -s de -t fr", "language pair de-fr"),
    bad_value("one language twice", "ctxgates gate-labels data -s de -t de", "language pair de-de"),
    bad_value("a language that is a pattern", "ctxgates gate-labels data -s '.*' -t en", "language pair .*-en"),
    bad_usage("no documents", PRECEDING, "--documents", "--one-document", "is required"),
)

# --- the data ---------------------------------------------------------------------------------------------------------


def damaged(about: str, change: Change, *pieces: str) -> Any:
    return bad_file(about, LABELS, change, *pieces)


def line(content: bytes) -> Change:
    """A dictionary with this line more."""
    return append(DICTIONARY, content)


DATA: Rows = (
    damaged("no training data", remove("data/train.*"), "data has no split 'train' to count on", "--train-subset"),
    damaged("no text", remove(TEXT), f"{TEXT} not found: make it again"),
    damaged("no index", remove(INDEX), f"{INDEX} not found", "fairseq-preprocess"),
    damaged("an empty text", write(TEXT, b""), f"{TEXT} is empty", "was the text file empty?"),
    damaged("an empty index", write(INDEX, b""), f"{INDEX} is not a memory-mapped index"),
    damaged("a text that is cut", cut(TEXT, -2), f"{TEXT} is truncated", "make it again"),
    damaged("a text that is longer", append(TEXT, b"12345678"), f"{TEXT} is longer than its index says"),
    damaged("a text that is a folder", folder(TEXT), f"{TEXT} is a folder"),
    damaged("an index that is a folder", folder(INDEX), f"{INDEX} is a folder"),
    *(
        damaged(f"an index cut to {size} bytes", cut(INDEX, size), INDEX, "make it again")
        for size in (10, VERSION + 8, TYPE + 1, LENGTHS, LENGTHS + 7, -1, -9)
    ),
    damaged(
        "an index of another magic number", write(INDEX, b"MMIDIDX\0\1" + bytes(90)), f"{INDEX} is damaged (Index file"
    ),
    damaged("an index of fairseq's old type", write(INDEX, b"TNTIDX\0\0" + bytes(90)), "--dataset-impl mmap"),
    damaged("an index that is text", copy("train.en", INDEX), f"{INDEX} is not a memory-mapped index"),
    damaged("another version of the index", put(INDEX, VERSION, "Q", 2), f"{INDEX} is damaged"),
    damaged("an unknown type", put(INDEX, TYPE, "B", 99), f"{INDEX} is damaged"),
    damaged("fractions for words", put(INDEX, TYPE, "B", 6), f"{INDEX} is damaged (its rows have no lengths)"),
    damaged("words of another size", put(INDEX, TYPE, "B", 5), INDEX),
    damaged("more rows than there are", put(INDEX, ROWS, "Q", 17), INDEX, "damaged"),
    damaged("fewer rows than there are", put(INDEX, ROWS, "Q", 15), INDEX, "damaged"),
    damaged("far too many rows", put(INDEX, ROWS, "Q", 1 << 62), INDEX, "damaged"),
    damaged("a bit of the number of rows", put(INDEX, ROWS, "Q", 16 | 1 << 63), INDEX, "damaged"),
    damaged("no rows", put(INDEX, ROWS, "Q", 0), "data/train.de-en.en", "again"),
    damaged("a length below zero", put(INDEX, LENGTHS, "i", -4), f"{INDEX} is damaged (its rows have no lengths)"),
    damaged("another length", put(INDEX, LENGTHS, "i", 1), f"{INDEX} is damaged"),
    damaged("pointers that are swapped", swap_pointers(INDEX), f"{INDEX} is damaged (its rows do not follow each"),
    damaged(
        "the text of another split",
        several(copy("data/valid.de-en.en.bin", TEXT), copy("data/valid.de-en.en.idx", INDEX)),
        "data/train.de-en.de.bin has 16 sentences",
        f"{TEXT} has 8",
    ),
    damaged("a word that the dictionary lacks", put(TEXT, 0, "H", 60000), f"{TEXT} holds the token id 60000"),
    damaged("a word that is padding", put(TEXT, 0, "H", 1), f"{TEXT}: the text has the word <pad>", "grep"),
    damaged("no dictionary", remove(DICTIONARY), f"{DICTIONARY} not found", "fairseq-preprocess"),
    damaged("a dictionary that is a folder", folder(DICTIONARY), DICTIONARY),
    damaged("an empty dictionary", write(DICTIONARY, b""), f"but {DICTIONARY} has 4 types"),
    damaged("a dictionary that is cut", cut(DICTIONARY, 60), DICTIONARY),
    damaged("a dictionary that is binary", write(DICTIONARY, bytes(range(256))), f"{DICTIONARY} is damaged"),
    damaged("a dictionary of other words", edit_lines(DICTIONARY, lambda lines: lines[:5]), "has 9 types"),
    damaged("a word without a count", line(b"word\n"), f"{DICTIONARY} is damaged", "<token> <cnt>"),
    damaged("a word whose count is a word", line(b"word many\n"), f"{DICTIONARY} is damaged", "<token> <cnt>"),
    damaged("a word whose count is a fraction", line(b"word 1.5\n"), f"{DICTIONARY} is damaged"),
    damaged("a word that is there twice", line(b"word 3\nword 4\n"), f"{DICTIONARY} is damaged", "Duplicate", "'word'"),
    damaged("a special symbol as a word", line(b"</s> 3\n"), f"{DICTIONARY} is damaged", "Duplicate", "'</s>'"),
    damaged("a word in Latin-1", line(b"w\xfcrd 3\n"), f"{DICTIONARY} is damaged", "encoding"),
    damaged("an empty line in a dictionary", line(b"\nword 3\n"), f"{DICTIONARY} is damaged"),
    damaged("a line of spaces in a dictionary", line(b"   \n"), f"{DICTIONARY} is damaged"),
    damaged("a dictionary in UTF-16", write(DICTIONARY, "word 3\n".encode("utf-16")), f"{DICTIONARY} is damaged"),
    bad_file(
        "two directories of different dictionaries",
        f"ctxgates gate-labels data:other {LANGUAGES}",
        several(copy("data", "other"), append("other/dict.de.txt", b"word 3\n")),
        "other/dict.de.txt differs from data/dict.de.txt",
        "--srcdict",
    ),
    damaged("a folder where labels are written", folder("data/train.gate.de-en.bin"), "data/train.gate.de-en.bin"),
    damaged("a folder where the index is written", folder("data/train.gate.de-en.idx"), "data/train.gate.de-en.idx"),
    damaged("a folder where the JSON is written", folder("data/valid.gate.de-en.json"), "data/valid.gate.de-en.json"),
    bad_file(
        "a folder where a table is written",
        f"{LABELS} --strategy mean",  # the labels would be others than those that are there
        folder("data/pmi.bilingual.de-en.npz"),
        "pmi.bilingual.de-en.npz",
    ),
)

# --- gate-labels ------------------------------------------------------------------------------------------------------

HUGE = 10**30
GATE_LABELS: Rows = (
    *(
        bad_usage(
            f"--min-count {value!r}", f"{LABELS} --min-count={value!r}", "--min-count", "is not an integer from 1"
        )
        for value in ("0", "-1", "1.5", "many", "nan", "")
    ),
    bad_usage("a --min-count that no count reaches", f"{LABELS} --min-count {HUGE}", "--min-count", str(HUGE)),
    *(
        bad_usage(f"--memory {value!r}", f"{LABELS} --memory={value!r}", "--memory", "4G or 512M")
        for value in ("0", "4", "0.4K", "-4G", "much", "4X", "nan", "inf", "", "9" * 400)
    ),
    *(
        bad_usage(f"--workers {value!r}", f"{LABELS} --workers={value!r}", "--workers", "is not an integer from 1")
        for value in ("0", "-1", "two", "1.0")
    ),
    bad_usage("more workers than a machine runs", f"{LABELS} --workers {HUGE}", "--workers", str(HUGE)),
    bad_usage("--workers and --dask", f"{LABELS} --workers 2 --dask a:1", "not allowed with argument --workers"),
    bad_usage("unknown --counts", f"{LABELS} --counts none", "--counts: invalid choice: 'none'"),
    bad_usage("unknown --strategy", f"{LABELS} --strategy median", "--strategy: invalid choice: 'median'"),
    bad_usage("unknown --measure", f"{LABELS} --measure mi", "--measure: invalid choice: 'mi'"),
    bad_value(
        "an unknown --train-subset", f"{LABELS} --train-subset trian", "data has no split 'trian'", "--train-subset"
    ),
    bad_value("an empty --train-subset", f"{LABELS} --train-subset ''", "data has no split ''", "--train-subset"),
)

# --- preceding-sentences ----------------------------------------------------------------------------------------------


def names(about: str, change: Change, *pieces: str, file: str = "train.names") -> Any:
    return bad_file(about, f"{PRECEDING} --documents train={file} valid=valid.names", change, *pieces)


def text(about: str, change: Change, *pieces: str) -> Any:
    return bad_file(about, f"{PRECEDING} --blank-line-separated train=train.de valid=valid.de", change, *pieces)


LENGTH = "but data/train has 16: give the file that belongs to this text"
PRECEDING_SENTENCES: Rows = (
    names("names of a sentence less", edit_lines("train.names", lambda lines: lines[:-1]), "of 15 sentences", LENGTH),
    names("names of a sentence more", append("train.names", b"4\n"), "train.names names the documents of 17", LENGTH),
    names("no names", write("train.names", b""), "train.names names the documents of 0 sentences", LENGTH),
    names("names of another text", nothing, "valid.names names the documents of 8 sentences", file="valid.names"),
    names("a line feed alone", write("train.names", b"\n"), "of 1 sentences", LENGTH),
    names("a byte order mark alone", write("train.names", b"\xef\xbb\xbf"), "train.names", LENGTH),
    names("old line ends", write("train.names", b"a\r" * 15), "of 15 sentences", LENGTH),
    names(
        "a sentence without a name",
        write("train.names", b"a\n" * 4 + b" \n" + b"a\n" * 11),
        "train.names, line 5",
        "no d",
    ),
    names("names in Latin-1", write("train.names", b"a\n\xfc\n"), "train.names, line 2", "UTF-8", "convert the file"),
    names("names in UTF-16", write("train.names", ("a\n" * 16).encode("utf-16")), "train.names, line 1", "UTF-8"),
    names("binary names", copy("models/plain.pt", "train.names"), "train.names", "UTF-8"),
    names("names that are not there", remove("train.names"), "train.names not found: check the path"),
    names("names that are a folder", folder("train.names"), "train.names", "irectory"),
    names("names below a file", nothing, "train.de/names not found: check the path", file="train.de/names"),
    names(
        "names that are not compressed", copy("train.names", "n.gz"), "n.gz is not a complete gzip file", file="n.gz"
    ),
    names("names that are cut", write("n.gz", gzip.compress(b"a\n" * 16)[:-9]), "n.gz is not a complete", file="n.gz"),
    names("no compressed names", write("n.gz", b""), "n.gz", file="n.gz"),
    text("a text of a sentence less", edit_lines("train.de", lambda lines: lines[1:]), "train.de has 15 sentences"),
    text("a text of a sentence more", append("train.de", b"more\n"), "train.de has 17 sentences and 0 blank lines"),
    text("an empty text", write("train.de", b""), "train.de has 0 sentences"),
    text("blank lines only", write("train.de", b"\n" * 16), "train.de, line 1: this line is blank either here"),
    text("a blank line for a sentence", edit_lines("train.de", lambda lines: ["", *lines[1:]]), "train.de, line 1"),
    text("a text in Latin-1", write("train.de", b"\xfc\n"), "train.de, line 1", "UTF-8"),
    text("a text that is not there", remove("valid.de"), "valid.de not found: check the path"),
    bad_usage("no file", f"{PRECEDING} --documents", "--documents: expected at least one argument"),
    bad_usage("a file without a split", f"{PRECEDING} --documents train.names", "'train.names' does not have the form"),
    bad_usage("a split without a file", f"{PRECEDING} --documents train=", "'train=' does not have the form"),
    bad_usage("a file of no split", f"{PRECEDING} --documents =train.names", "does not have the form SPLIT=FILE"),
    bad_usage("two ways to name documents", f"{PRECEDING} --one-document --documents train=train.names", "not allowed"),
    bad_value(
        "a split that is not there", f"{PRECEDING} --documents tests=a", "tests: data has no such split", "train, "
    ),
    bad_value("a split named twice", f"{PRECEDING} --documents train=a train=b", "--documents names train twice"),
    bad_value("two files for one directory", f"{PRECEDING} --documents train=a:b", "train: 2 files for 1 data"),
    bad_file("a text that is cut", f"{PRECEDING} --one-document", cut("data/valid.de-en.de.bin", -2), "is truncated"),
    bad_file(
        "a text without an index", f"{PRECEDING} --one-document", cut("data/test.de-en.de.idx", 40), "test.de-en.de"
    ),
    bad_file(
        "a raw text in Latin-1",
        f"{PRECEDING} --one-document",
        several(remove("data/valid.de-en.de.*"), write("data/valid.de-en.de", b"\xfc\n")),
        "data/valid.de-en.de is not text in UTF-8",
        "convert the file",
    ),
    bad_file(
        "an empty raw text",
        f"{PRECEDING} --one-document",
        several(remove("data/valid.de-en.de.*"), write("data/valid.de-en.de", b"")),
        "data/valid.de-en.de holds no sentence",
    ),
    bad_file("no dictionary", f"{PRECEDING} --one-document", remove("data/dict.de.txt"), "data/dict.de.txt not found"),
    bad_file(
        "a folder where the stream is written",
        f"{PRECEDING} --one-document",
        folder("data/train.preceding.de-en.idx"),
        "data/train.preceding.de-en.idx",
    ),
)

# --- relations of jsonl -----------------------------------------------------------------------------------------------

RELATIONS = f"ctxgates relations data {LANGUAGES} --extractor jsonl --relations"
FILES = f"{RELATIONS} train=train.jsonl valid=valid.jsonl"
TUPLE: Dict[str, Any] = {"subject": [0], "relation": [], "object": []}


def lines(about: str, change: Change, *pieces: str) -> Any:
    return bad_file(about, FILES, change, *pieces)


def third_line(content: Any) -> Change:
    """Another third line, as it is, or of a function of what it holds."""

    def change(before: list) -> None:
        new = content(json.loads(before[2])) if callable(content) else content
        before[2] = new if isinstance(new, str) else json.dumps(new)

    return edit_lines("train.jsonl", change)


def its(key: str, value: Any) -> Change:
    """Another value of one of the third line's keys."""
    return third_line(lambda content: {**content, key: value})


PLACE, FORM = "train.jsonl, line 3", "lines look like {"
A_TUPLE = 'a tuple must be {"subject": [...], "relation": [...], "object": [...]}'
WRONG_WORDS: Sequence[Any] = (None, "text", 3, {}, [], ["other"], [["q1"]], [1, 2])
WRONG_TUPLES: Sequence[Any] = (
    *(3, "text", True, {"subject": [0]}),
    *([3], [None], ["subject"], [[0]], [{}], [{"subj": [0]}]),
)
WRONG_PARTS: Dict[str, Dict[str, Any]] = {
    "a fourth part": {"time": [0]},
    "a number": {"subject": 0},
    "null": {"subject": None},
    "lists": {"subject": [[0]]},
    "numbers and text": {"subject": [0, "0"]},
    "numbers and null": {"subject": [0, None]},
}
RELATION_FILES: Rows = (
    lines("a word that is padding", put("data/train.de-en.de.bin", 0, "H", 1), "row 1: the text has the word <pad>"),
    bad_file(
        "one dump for two directories",
        f"ctxgates relations data:other {LANGUAGES} --dump a.jsonl:models/../a.jsonl",
        copy("data", "other"),
        "name another file for each data directory",
    ),
    *(
        lines(f"a line that is {about}", third_line(content), PLACE, FORM)
        for about, content in {
            "empty": "",
            "no JSON": "rain falls",
            "a half object": '{"words": ["a"], ',
            "two objects": '{"words": [], "tuples": []} {"words": [], "tuples": []}',
            "a number": "3",
            "null": "null",
            "a list": "[]",
            "text": '"words"',
            "without words and tuples": "{}",
            "without tuples": '{"words": []}',
            "of single quotes": "{'words': [], 'tuples': []}",
            "NUL": "\0",
            "deep": "[" * 100_000,
        }.items()
    ),
    lines(
        "an unknown key", third_line(lambda content: {**content, "tuple": []}), PLACE, "unknown keys ['tuple']", FORM
    ),
    *(lines(f"words that are {words!r}", its("words", words), PLACE, "words") for words in WRONG_WORDS),
    lines("no words", third_line({"tuples": []}), PLACE, "the words are None"),
    *(lines(f"tuples that are {found!r}", its("tuples", found), PLACE, A_TUPLE) for found in WRONG_TUPLES),
    *(
        lines(f"a tuple of {about}", its("tuples", [{**TUPLE, **part}]), PLACE, A_TUPLE)
        for about, part in WRONG_PARTS.items()
    ),
    *(
        lines(
            f"a tuple that names the word {word!r}",
            its("tuples", [{**TUPLE, "subject": [word]}]),
            PLACE,
            "a tuple names",
        )
        for word in (-1, 1000, HUGE, 0.0, 1.5, True, "0", "falls", float("nan"), float("inf"))
    ),
    lines("a tuple of a key that is there twice", third_line('{"words": [], "words": [], "tuples": []}'), PLACE),
    lines("a line less", edit_lines("train.jsonl", lambda lines: lines[:-1]), "tuples of only 15 sentences", "has 16"),
    lines(
        "a line more", edit_lines("train.jsonl", lambda lines: lines + lines[-1:]), "tuples of more than 16 sentences"
    ),
    lines("an empty line at the end", append("train.jsonl", b"\n"), "train.jsonl, line 17", FORM),
    lines("lines of another split", third_line(lambda c: {**c, "split": "test"}), "train.jsonl", "words are"),
    lines(
        "no lines", write("train.jsonl", b""), "train.jsonl has tuples of only 0 sentences", "give the file for this"
    ),
    lines("the lines of another text", copy("valid.jsonl", "train.jsonl"), "train.jsonl, line 1: the words are"),
    lines(
        "lines in Latin-1",
        append("train.jsonl", b'{"words": ["\xfc"], "tuples": []}\n'),
        "train.jsonl, line 17",
        "utf-8",
    ),
    lines("lines in UTF-16", edit("train.jsonl", lambda c: c.decode().encode("utf-16")), "train.jsonl, line 1"),
    lines("binary lines", copy("models/plain.pt", "train.jsonl"), "train.jsonl, line 1", FORM),
    lines("lines that are not there", remove("train.jsonl"), "train.jsonl not found: check the path"),
    lines("lines that are a folder", folder("train.jsonl"), "train.jsonl", "irectory"),
    lines("a later file that is not there", remove("valid.jsonl"), "valid.jsonl not found: check the path"),
    bad_value("lines below a file", f"{RELATIONS} train=train.de/x", "train.de/x not found"),
    bad_file("lines that are not compressed", f"{RELATIONS} train=a.gz", copy("train.jsonl", "a.gz"), "a.gz, line 1"),
    bad_file(
        "lines that are cut",
        f"{RELATIONS} train=a.gz",
        several(copy("train.jsonl", "a.gz"), edit("a.gz", lambda content: gzip.compress(content)[:-20])),
        "a.gz, line",
    ),
    bad_value("no file", f"ctxgates relations data {LANGUAGES} --extractor jsonl", "give --relations SPLIT=FILE"),
    bad_usage("a file without a split", f"{RELATIONS} train.jsonl", "'train.jsonl' does not have the form SPLIT=FILE"),
    bad_value("a split that is not there", f"{RELATIONS} tset=a", "--relations tset: data has no such split"),
    bad_value("a split named twice", f"{RELATIONS} train=a train=b", "--relations names train twice"),
    bad_value("two files for one directory", f"{RELATIONS} train=a:b", "--relations train: 2 files for 1 data"),
    bad_usage(
        "an unknown extractor", f"ctxgates relations data {LANGUAGES} --extractor json", "invalid choice: 'json'"
    ),
    bad_usage(
        "files and a parser", f"{FILES} --extractor stanza", "--relations would do nothing: it needs --extractor jsonl"
    ),
    bad_usage("workers", f"{FILES} --workers 2", "--workers would do nothing: it needs an --extractor that parses"),
    bad_usage("a language", f"{FILES} --language en", "--language would do nothing"),
    bad_usage("a server", f"{FILES} --corenlp-url http://localhost:1", "--corenlp-url would do nothing"),
    bad_usage("a time limit", f"{FILES} --timeout 3", "--timeout would do nothing: it needs --extractor corenlp"),
    *(
        bad_usage(
            f"--timeout {value}", f"ctxgates relations data --timeout={value}", f"'{value}' is not a number of seconds"
        )
        for value in ("0", "-1", "inf", "nan", "soon")
    ),
    bad_usage(
        "a property without a value", "ctxgates relations data --corenlp-property a", "'a' does not have the form"
    ),
    bad_usage("unknown subwords", f"{FILES} --remove-bpe bpe", "--remove-bpe", "invalid choice: 'bpe'"),
    bad_value(
        "a dump in no folder", f"{FILES} --dump nowhere/a", "--dump nowhere/a: name a file in an existing folder"
    ),
    bad_value("a dump that is a folder", f"{FILES} --dump models", "--dump models: name a file"),
    bad_value("a dump below a file", f"{FILES} --dump train.de/a", "--dump train.de/a: name a file"),
    bad_value("two dumps for one directory", f"{FILES} --dump a:b", "--dump a:b: 2 files for 1 data directories"),
    bad_file(
        "a dictionary that is damaged", FILES, append("data/dict.de.txt", b"word\n"), "data/dict.de.txt is damaged"
    ),
    bad_file(
        "a dictionary that is shorter",
        FILES,
        edit_lines("data/dict.de.txt", lambda lines: lines[:5]),
        "data/train.de-en.de.bin, row ",
        "has 9 types",
    ),
    bad_file("a text that is cut", FILES, cut("data/train.de-en.de.bin", 20), "data/train.de-en.de.bin is truncated"),
    bad_file(
        "a folder where the stream is written", FILES, folder("data/train.relation.de-en.bin"), "relation.de-en.bin"
    ),
)

# --- average-checkpoints ----------------------------------------------------------------------------------------------

AVERAGE = "ctxgates average-checkpoints --inputs models/plain.pt"


def changed_model(function: Callable[[dict], Any]) -> Change:
    """A checkpoint whose parameters a function has changed."""

    def change() -> None:
        state = load(Path("models/plain.pt"))
        state["model"] = function(state["model"]) or state["model"]
        torch.save(state, "other.pt")

    return change


def without(model: dict, name: str) -> dict:
    return {key: value for key, value in model.items() if key != name}


def other(about: str, change: Change, *pieces: str) -> Any:
    return bad_file(about, f"{AVERAGE} other.pt --output mean.pt", change, "other.pt", *pieces)


AVERAGE_CHECKPOINTS: Rows = (
    bad_usage("no input", "ctxgates average-checkpoints --output a.pt", "required: --inputs"),
    bad_usage("no output", AVERAGE, "required: --output"),
    bad_value("an output in no folder", f"{AVERAGE} --output nowhere/a.pt", "nowhere is not a directory", "--output"),
    bad_value("an output that is a folder", f"{AVERAGE} --output models", "models", "folder"),
    bad_value("an output below a file", f"{AVERAGE} --output train.de/a.pt", "train.de is not a directory"),
    other("an input that is not there", nothing, "cannot be read: No such file"),
    other("an input that is a folder", folder("other.pt"), "other.pt is a folder: name files in it, or give --num-"),
    other("an empty input", write("other.pt", b""), "damaged"),
    other("an input that is cut", several(copy("models/plain.pt", "other.pt"), cut("other.pt", 9000)), "damaged"),
    other("an input that is text", copy("train.de", "other.pt"), "damaged"),
    other("an input of zeros", write("other.pt", bytes(3000)), "damaged"),
    other("a list", save("other.pt", [1]), NO_PARAMETERS),
    other("a tensor", save("other.pt", torch.zeros(2)), NO_PARAMETERS),
    other("a checkpoint without a model", save("other.pt", {"args": None}), NO_PARAMETERS),
    other("a model that is a list", save("other.pt", {"model": [1]}), NO_PARAMETERS),
    other("a model of no tensors", save("other.pt", {"model": {"weight": 3}}), NO_PARAMETERS),
    other(
        "a model without parameters", changed_model(lambda _: {"none": torch.zeros(1)}), "another model than", "missing"
    ),
    other(
        "a parameter less",
        changed_model(lambda model: without(model, "decoder.layers.0.fc1.bias")),
        "fc1.bias is missing",
    ),
    other(
        "a parameter more", changed_model(lambda model: model.update(more=torch.zeros(1))), "more is not in the first"
    ),
    other(
        "a parameter of another shape",
        changed_model(lambda model: model.update({"decoder.layers.0.fc1.bias": torch.zeros(3)})),
        "decoder.layers.0.fc1.bias has shape (3,), in the first (64,)",
    ),
    bad_value(
        "another model", f"{AVERAGE} models/isg.pt --output a.pt", "models/isg.pt is a checkpoint of another model"
    ),
    bad_value(
        "a folder", "ctxgates average-checkpoints --inputs models --output a.pt", "models is a folder: name files in"
    ),
    *(
        bad_value(
            f"{value} epochs",
            f"ctxgates average-checkpoints --inputs models --num-epoch-checkpoints={value} --output a.pt",
            piece,
        )
        for value, piece in {
            0: "cannot average 0 checkpoints: ask for 1 or more",
            -1: "cannot average -1 checkpoints",
            1: "models has 0 checkpoints named like",
            HUGE: "models has 0 checkpoints",
        }.items()
    ),
    bad_value(
        "epochs of a file", f"{AVERAGE} --num-epoch-checkpoints 1 --output a.pt", "models/plain.pt is not a directory"
    ),
    bad_value(
        "epochs of two folders",
        "ctxgates average-checkpoints --inputs models saved --num-epoch-checkpoints 1 --output a.pt",
        "need one directory",
    ),
    bad_usage(
        "epochs that are a word", f"{AVERAGE} --num-epoch-checkpoints few --output a.pt", "invalid int value: 'few'"
    ),
    bad_usage(
        "epochs and updates",
        f"{AVERAGE} --num-epoch-checkpoints 1 --num-update-checkpoints 1 --output a.pt",
        "not allowed",
    ),
    bad_usage(
        "a bound of nothing",
        f"{AVERAGE} --checkpoint-upper-bound 3 --output a.pt",
        "--checkpoint-upper-bound would do nothing",
    ),
)

PREPROCESSING: Rows = (*DIRECTORIES, *DATA, *GATE_LABELS, *PRECEDING_SENTENCES, *RELATION_FILES, *AVERAGE_CHECKPOINTS)
