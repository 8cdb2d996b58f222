"""Relation tuples as lines of JSON: what ``--dump`` writes for people to read, and what people write themselves.

    {"words": ["farmers", "buy", "lamps", "."], "tuples": [{"subject": [0], "relation": [1], "object": [2]}]}

A line a sentence, in the order of the data; numbers are positions among the words, from 0; ``"tuples": null`` is a
sentence that could not be parsed. ``--dump`` adds ``"split"``, by which one file can hold several splits, and
``"text"``, the tuples as words.
"""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, TextIO

from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write
from fairseq_ctxgates.relations.extraction.corpus import SourceText
from fairseq_ctxgates.relations.extraction.extractor import RelationTuple
from fairseq_ctxgates.relations.extraction.words import Words, unescape

PARTS = RelationTuple._fields


def tuples_line(split: str, words: Sequence[str], tuples: Optional[Sequence[RelationTuple]]) -> str:
    """The line of a sentence, its line feed included."""
    content: Dict[str, Any] = {"split": split, "words": list(words), "tuples": None}
    if tuples is not None:
        content["tuples"] = [dict(zip(PARTS, found)) for found in tuples]
        content["text"] = [" | ".join(" ".join(words[word] for word in part) for part in found) for found in tuples]
    return json.dumps(content, ensure_ascii=False) + "\n"


@contextmanager
def open_dump(path: Path) -> Iterator[TextIO]:
    """A text file that appears under its name when the block ends, and not at all when it fails."""
    with atomic_write(path) as temporary:
        with open(temporary, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as stream:
            yield stream


def read_tuples(path: Path, text: SourceText) -> Iterator[Optional[List[RelationTuple]]]:
    """The tuples of each row of a text, from a file of lines, which may be compressed with gzip.

    Raises:
        UserError: the file cannot be read, or its sentences are not those of the text
    """
    name = f"{text.split.data_dir}/{text.split.name}"
    lines = (line for line in parsed_lines(path) if line[1].get("split", text.split.name) == text.split.name)
    for row, (line, words) in enumerate(zip_longest(lines, text)):
        if line is None or words is None:
            have = f"only {row}" if line is None else f"more than {row}"
            raise UserError(
                f"{path} has tuples of {have} sentences, but {name} has {len(text)}: give the file of its text"
            )
        place, content = line
        check_words(place, content.get("words"), words, f"{name}, row {row + 1}")
        yield as_tuples(place, content.get("tuples"), len(words.words))


def parsed_lines(path: Path) -> Iterator[Any]:
    """The place, in words, and the object of each line of JSON."""
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
    number = 0
    try:
        with opened as stream:
            for number, line in enumerate(stream, 1):
                content = json.loads(line)
                if not isinstance(content, dict):
                    raise ValueError("a line is an object with words and tuples")
                yield f"{path}, line {number}", content
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:  # also not UTF-8
        raise UserError(
            f"{path}, line {number or 1}: {error}; see --dump for what the lines are to look like"
        ) from error


def check_words(place: str, found: Any, words: Words, row: str) -> None:
    """Raise UserError unless the words of a line are those of a row, where these are known."""
    same = isinstance(found, list) and len(found) == len(words.words)
    for given, word, is_unknown in zip(found if same else [], words.words, words.is_unknown):
        same = same and (is_unknown or (isinstance(given, str) and unescape(given) == word))
    if not same:
        raise UserError(f"{place}: the words are {found!r}, but those of {row}, are {words.words!r}")


def as_tuples(place: str, found: Any, words: int) -> Optional[List[RelationTuple]]:
    """The tuples of a line, checked against the number of words."""
    if found is None:
        return None
    try:
        tuples = [RelationTuple(*(sorted(entry.get(part, [])) for part in PARTS)) for entry in found]
        positions = {word for entry in tuples for part in entry for word in part}
    except (TypeError, AttributeError) as error:
        raise UserError(f'{place}: a tuple is {{"subject": [...], "relation": [...], "object": [...]}}') from error
    wrong = [word for word in positions if type(word) is not int or not 0 <= word < words]
    if wrong:
        raise UserError(f"{place}: a tuple names the word {wrong[0]!r}, but the {words} words are counted from 0")
    return tuples
