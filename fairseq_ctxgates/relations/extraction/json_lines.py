"""Relation tuples as lines of JSON: the format of ``--dump``, and of the input of ``--extractor jsonl``.

    {"words": ["farmers", "buy", "lamps"], "tuples": [{"subject": [0], "relation": [1], "object": [2]}]}

The file has one line for each sentence, in the order of the data. Numbers are word positions, from 0.
``"tuples": null`` marks a sentence that could not be parsed. ``--dump`` adds ``"split"``, so that one file can hold
several splits, and ``"text"``, the tuples as words.
"""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, Dict, Iterator, Sequence, Set, TextIO, Tuple, cast

from fairseq_ctxgates.errors import UserError, one_line
from fairseq_ctxgates.files import atomic_write, open_binary
from fairseq_ctxgates.relations.extraction.corpus import SourceText
from fairseq_ctxgates.relations.extraction.extractor import RelationTuple, Tuples
from fairseq_ctxgates.relations.extraction.words import SourceSentence, unescape

PARTS = RelationTuple._fields
KEYS = ("split", "words", "tuples", "text")
EXAMPLE = '{"words": ["farmers", "buy", "lamps"], "tuples": [{"subject": [0], "relation": [1], "object": [2]}]}'


def json_line(split: str, words: Sequence[str], tuples: Tuples) -> str:
    """The line of a sentence, with its line feed."""
    content: Dict[str, Any] = {"split": split, "words": list(words), "tuples": None}
    if tuples is not None:
        content["tuples"] = [dict(zip(PARTS, entry)) for entry in tuples]
        content["text"] = [" | ".join(" ".join(words[word] for word in part) for part in entry) for entry in tuples]
    return json.dumps(content, ensure_ascii=False) + "\n"


@contextmanager
def open_dump(path: Path) -> Iterator[TextIO]:
    """Open a text file that is written atomically; one whose name ends in ``.gz`` is compressed."""
    opened = gzip.open if path.suffix == ".gz" else open
    with atomic_write(path) as temporary:
        with opened(temporary, "wt", encoding="utf-8", newline="\n") as file:
            yield cast(TextIO, file)


def read_tuples(path: Path, text: SourceText) -> Iterator[Tuples]:
    """The tuples of each row of a text, from a file of JSON lines, which may be compressed with gzip. None for a row
    that was not parsed, or whose words cannot be matched, see :func:`is_split_by_unknown`.

    Raises:
        UserError: the file cannot be read, or does not have the sentences of the text
    """
    name = f"{text.split.data_dir}/{text.split.name}"
    others: Set[str] = set()
    for row, (line, sentence) in enumerate(zip_longest(lines_of_split(path, text.split.name, others), text)):
        if line is None or sentence is None:
            count = f"only {row}" if line is None else f"more than {row}"
            left_out = f" (its other lines name the split {' or '.join(sorted(others))})" if others else ""
            raise UserError(
                f"{path} has tuples of {count} sentences{left_out}, but {name} has {len(text)}: give the file for this "
                f"text"
            )
        place, content = line
        if is_split_by_unknown(content.get("words"), sentence):
            yield None
        else:
            check_words(place, content.get("words"), sentence, f"{name}, row {row + 1}")
            yield check_tuples(place, content.get("tuples"), len(sentence.words))


def lines_of_split(path: Path, name: str, others: Set[str]) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """The lines of a file, as :func:`parse_lines`, that name this split or none; the names of other splits are added to
    ``others``."""
    for place, content in parse_lines(path):
        named = content.get("split")
        if named in (None, name):
            yield place, content
        else:
            others.add(str(named))


def parse_lines(path: Path) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """The place (file and line number, for messages) and the JSON object of each line."""
    line_number = 0
    try:
        with open_binary(path) as file:
            for line_number, line in enumerate(file, 1):
                content = json.loads(line.decode("utf-8-sig" if line_number == 1 else "utf-8"))
                if not isinstance(content, dict) or "tuples" not in content:
                    raise ValueError("a line must be an object with words and tuples")
                if not content.keys() <= set(KEYS):
                    raise ValueError(f"unknown keys {sorted(content.keys() - set(KEYS))}; a line has {', '.join(KEYS)}")
                yield f"{path}, line {line_number}", content
    # ValueError: also text that is not UTF-8; RecursionError: brackets nested too deep
    except (ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path}, line {line_number or 1}: {one_line(error)}; lines look like {EXAMPLE}, with word positions from 0"
        ) from error


def fits(given: object, word: str) -> bool:
    """Whether a word of a line is a word of a row; Moses escapes may stay or be undone."""
    return isinstance(given, str) and word in (given, unescape(given))


def is_split_by_unknown(found: object, sentence: SourceSentence) -> bool:
    """Whether a row has another number of words than its line because a subword is unknown: ``<unk>`` has no mark that
    says whether the word goes on. The words before the first such word are the same, and those at the end, after the
    word behind the last one."""
    if not isinstance(found, list) or len(found) == len(sentence.words) or not any(sentence.is_unknown):
        return False
    before = sentence.words[: sentence.is_unknown.index(True)]
    after = sentence.words[::-1][: max(sentence.is_unknown[::-1].index(True) - 1, 0)]
    pairs = [*zip(found, before), *zip(found[::-1], after)]
    return len(found) >= len(before) + len(after) and all(fits(given, word) for given, word in pairs)


def check_words(place: str, found: object, sentence: SourceSentence, row: str) -> None:
    """Raise UserError unless the words of a line are the words of a row; an unknown word of the row fits any word."""
    given_words = found if isinstance(found, list) else []
    is_equal = [
        is_unknown or fits(given, word)
        for given, word, is_unknown in zip(given_words, sentence.words, sentence.is_unknown)
    ]
    if all(is_equal) and isinstance(found, list) and len(found) == len(sentence.words):
        return
    first = "" if all(is_equal) else f"; the first that differs is word {is_equal.index(False)}, counted from 0"
    raise UserError(f"{place}: the words are {found!r}, but the words of {row}, are {sentence.words!r}{first}")


def check_tuples(place: str, found: Any, num_words: int) -> Tuples:
    """The tuples of a line; UserError unless ``found``, a value from JSON, is null or has valid word positions."""
    if found is None:
        return None
    try:
        tuples = [RelationTuple(**{part: sorted(words) for part, words in entry.items()}) for entry in found]
        positions = {word for entry in tuples for part in entry for word in part}
    except (TypeError, AttributeError) as error:  # TypeError: also a part that is missing, or has another name
        raise UserError(f'{place}: a tuple must be {{"subject": [...], "relation": [...], "object": [...]}}') from error
    wrong = [word for word in positions if type(word) is not int or not 0 <= word < num_words]
    if wrong:
        raise UserError(f"{place}: a tuple names the word {wrong[0]!r}, but the {num_words} words are counted from 0")
    return tuples
