"""Contrastive test sets: an example has a source sentence, the sentences before it, the right translation, and wrong
translations.

The sets are read from the JSON files of ContraPro (Müller et al. 2018), from those of the discourse test sets of Bawden
et al. (2018), and from plain parallel files.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from fairseq_ctxgates.analysis.systems import check_length, read_sentences
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import read_lines

# The sentences before an example, the nearest last, "" for none, and their translations; None if these are not known.
Context = Tuple[Sequence[str], Optional[Sequence[str]]]
FAR = 3  # ContraPro's own evaluation has one group for all larger distances between pronoun and antecedent


@dataclass(frozen=True)
class Example:
    """A source sentence with translations to choose from.

    Attributes:
        where: file and place of the example, for messages
        source: the sentence
        preceding: the source sentences before it in its document, the nearest last; none of them is empty
        translations: the right translation, then the wrong ones
        preceding_targets: for each translation, the translations of the preceding sentences; None if they are not known
        groups: the groups that the example counts in, such as {"distance": "1"}
    """

    where: str
    source: str
    preceding: Sequence[str]
    translations: Sequence[str]
    preceding_targets: Optional[Sequence[Sequence[str]]] = None
    groups: Mapping[str, str] = field(default_factory=dict)


# --- JSON


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        UserError: the file cannot be read; the message names the line.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: line {line} is not UTF-8: convert the file") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {error.lineno} is not JSON ({error.msg}): get the file again") from error
    except RecursionError as error:
        raise UserError(f"{path} is not JSON of a test set ({error}): get the file again") from error


def read_test_set(
    path: Path,
    langs: Sequence[str],
    preceding: Sequence[Path] = (),
    preceding_target: Sequence[Path] = (),
    documents: Optional[Path] = None,
    context_size: int = 1,
) -> List[Example]:
    """The examples of a JSON file. ContraPro's file holds a list, that of a discourse test set an object.

    Args:
        langs: source and target language, the extensions of the files in ``documents``
        preceding: for ContraPro, a file with the preceding sentence of each example (see :func:`preceding_lines`), a
            file with the sentences before those, and so on
        preceding_target: for ContraPro with ``preceding``, such files with the translations of these sentences
        documents: for ContraPro, the folder of the subtitles that its examples come from
        context_size: how many sentences before each example are taken from ``documents``

    Raises:
        UserError: one of the files cannot be read or has another form.
    """
    content = read_json(path)
    if isinstance(content, dict):
        if preceding or documents or preceding_target:
            raise UserError(
                f"{path} has its preceding sentences: leave --preceding, --preceding-target and --documents out"
            )
        examples = list(_discourse_examples(content, path))
    elif isinstance(content, list):
        examples = list(
            _contrapro_examples(content, path, langs, (preceding, preceding_target), documents, context_size)
        )
    else:
        raise UserError(f"{path} is neither ContraPro's list nor the object of the discourse test sets")
    if not examples:
        raise UserError(f"{path} holds no examples")
    return examples


def _discourse_examples(content: Mapping[str, Any], path: Path) -> Iterator[Example]:
    """anaphora.json has one source for all translations of an entry, lexical-choice.json a source for each."""
    for key, entry in content.items():
        where = f"{path}: example {key}"
        with _form(where):
            for item in entry.get("examples", [entry]):
                source, target = item["src"], item["trg"]
                for pair in target if isinstance(target, list) else [target]:
                    right = "correct" if "correct" in pair else "semi-correct"
                    groups = {"translation": right, "type": pair.get("type", entry.get("type"))}
                    chosen = pair[right], pair["incorrect"]
                    before, translations = ([sentences[place] for sentences in chosen] for place in (0, 1))
                    yield _example(where, source[1], source[:1], translations, groups, [[text] for text in before])


def _contrapro_examples(
    content: Sequence[Any],
    path: Path,
    langs: Sequence[str],
    preceding: Tuple[Sequence[Path], Sequence[Path]],
    documents: Optional[Path],
    context_size: int,
) -> Iterator[Example]:
    places = [f"{path}: entry {number}" for number in range(1, len(content) + 1)]
    translations = [_contrapro_translations(where, entry) for where, entry in zip(places, content)]
    contexts: Iterable[Context]
    if preceding[0]:
        contexts = _contexts_in_files(*preceding, [len(choices) for choices in translations])
    elif documents:
        contexts = _subtitles_before(content, places, documents, langs, context_size)
    else:
        raise UserError(
            f"{path} does not have the preceding sentences: give --documents, with the folder that ContraPro's "
            f"setup_opensubs.sh makes, or --preceding, with the text that its json2text_and_context.pl --context 1 "
            f"extracts"
        )
    for where, entry, choices, (before, target) in zip(places, content, translations, contexts):
        with _form(where):
            distance = entry.get("ante distance")
            groups = {
                "pronoun": f"{entry['src pronoun']}:{entry['ref pronoun']}".lower(),
                "distance": f">{FAR}" if distance is not None and distance > FAR else distance,
                "intrasegmental": entry.get("intrasegmental"),
            }
            before_targets = None if target is None else [target] * len(choices)
            yield _example(where, entry["src segment"], before, choices, groups, before_targets)


def _contrapro_translations(where: str, entry: Any) -> List[Any]:
    """The right translation of an entry, then the wrong ones."""
    with _form(where):
        if "expected" in entry and "errors" not in entry:
            raise UserError(
                f"{where} is one of ctxpro's, which scores translations and has no wrong ones to choose from: see "
                f"its section in docs/analyses.md"
            )
        translations = [entry["ref segment"], *(error["contrastive"] for error in entry["errors"])]
        if len(translations) == 1:
            raise UserError(f"{where} has no wrong translation to choose from: leave it out")
        return translations


def _contexts_in_files(files: Sequence[Path], target_files: Sequence[Path], choices: Sequence[int]) -> List[Context]:
    """The context of each example, from files that :func:`preceding_lines` reads."""
    texts, targets = ([preceding_lines(file, choices) for file in side] for side in (files, target_files))
    check_order(files, texts)
    translated: Sequence[Optional[Sequence[str]]] = _nearest_last(targets) if targets else [None] * len(choices)
    return list(zip(_nearest_last(texts), translated))


def preceding_lines(path: Path, choices: Sequence[int]) -> List[str]:
    """The preceding sentence of each example, "" for none.

    The file has a line for each example, or for each translation of each example as ContraPro's script writes it.

    Args:
        choices: how many translations each example has

    Raises:
        UserError: the file has another number of lines.
    """
    lines = read_lines(path)
    if len(lines) == len(choices):
        return lines
    if len(lines) != sum(choices):
        raise UserError(
            f"{path} has {len(lines)} lines for {len(choices)} examples of {sum(choices)} translations: it must have a "
            f"line for each example, or for each translation (one preceding sentence: --context 1)"
        )
    return [lines[end - count] for count, end in zip(choices, accumulate(choices))]


def check_order(files: Sequence[Path], texts: Sequence[Sequence[str]]) -> None:
    """Raise UserError if the files seem to be in reverse order: some example lacks a sentence that is nearer than one
    that it has, and no example would if the files were reversed."""
    hole = _first_hole(texts)
    if hole is not None and _first_hole(texts[::-1]) is None:
        raise UserError(
            f"{files[0]} has no sentence for example {hole}, and a later file has: name the file of the nearest "
            f"sentences first"
        )


def _first_hole(nearest_first: Sequence[Sequence[str]]) -> Optional[int]:
    """The number, from 1, of the first example that lacks a sentence but has a farther one; None if there is none."""
    for number, sentences in enumerate(zip(*nearest_first), start=1):
        if any(farther and not nearer for nearer, farther in zip(sentences, sentences[1:])):
            return number
    return None


def _nearest_last(files: Sequence[Sequence[str]]) -> List[Sequence[str]]:
    """For each example, its lines in the files, the nearest sentence last; the first file has the nearest sentences."""
    return list(zip(*reversed(files)))


def _subtitles_before(
    content: Sequence[Any], places: Sequence[str], folder: Path, langs: Sequence[str], context_size: int
) -> Iterator[Context]:
    """For each segment, the lines before it in ``folder``/YEAR/NAME.SRC and the same lines in NAME.TGT.

    Lines before the beginning of a file are "". The lines of NAME.TGT are None if this file is missing or its line for
    the segment is not the reference. An entry's ``document id`` is the name of the target language's file; its
    ``segment id`` counts lines from 1.
    """
    files = {path.name: path for path in folder.glob("*/*")}
    if not any(name.endswith(f".{langs[0]}") for name in files):
        raise UserError(f"--documents {folder}: there is no */*.{langs[0]} in it")
    read = lru_cache(maxsize=None)(read_lines)
    for where, entry in zip(places, content):
        with _form(where):
            document, segment = str(entry["document id"]), int(entry["segment id"])
        stem = document[: -len(langs[1])] if document.endswith(f".{langs[1]}") else f"{document}."
        paths = {lang: files.get(f"{stem}{lang}") for lang in langs}
        found = {lang: read(path) for lang, path in paths.items() if path is not None}
        if langs[0] not in found:
            raise UserError(f"{where}: {folder}/*/{stem}{langs[0]} not found")
        fits = {
            lang: _without_spaces(_line(lines, segment)) == _without_spaces(str(entry.get(f"{side} segment")))
            for (lang, lines), side in zip(found.items(), ("src", "ref"))
        }
        if not fits[langs[0]]:
            raise UserError(
                f"{where}: line {segment} of {paths[langs[0]]} is not its source sentence: another release?"
            )
        before = range(segment - context_size, segment)
        target = [_line(found[langs[1]], line) for line in before] if fits.get(langs[1]) else None
        yield [_line(found[langs[0]], line) for line in before], target


def _line(lines: Sequence[str], number: int) -> str:
    """The line of this number, from 1; "" if there is no such line."""
    return lines[number - 1] if 1 <= number <= len(lines) else ""


def _without_spaces(text: str) -> str:
    return "".join(text.split())


@contextlib.contextmanager
def _form(where: str) -> Iterator[None]:
    """Turn the exceptions that JSON of an unexpected form causes into a UserError."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"{where} has no {error}") from error
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise UserError(f"{where} does not have the expected form ({error})") from error


def _example(
    where: str,
    source: Any,
    preceding: Sequence[Any],
    translations: Sequence[Any],
    groups: Mapping[str, Any],
    preceding_targets: Optional[Sequence[Sequence[Any]]],
) -> Example:
    """An example of these texts. As in training, an empty preceding sentence ends a document: it and the sentences
    before it are left out."""
    for text in (source, *preceding, *translations, *chain.from_iterable(preceding_targets or ())):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} where a sentence should be")
    named = {name: str(value).lower() for name, value in groups.items() if value is not None}
    first = 1 + max((place for place, sentence in enumerate(preceding) if not sentence), default=-1)
    targets = None if preceding_targets is None else [list(texts[first:]) for texts in preceding_targets]
    return Example(where, source, list(preceding[first:]), translations, targets, named)


# --- plain files


def read_parallel(
    source: Path,
    reference: Path,
    contrastive: Sequence[Path],
    preceding: Sequence[Path] = (),
    preceding_target: Sequence[Path] = (),
) -> List[Example]:
    """The examples of parallel files, which have a line for each example.

    Args:
        source: the source sentences
        reference: the right translations
        contrastive: files of wrong translations; an empty line if an example has fewer than there are files
        preceding: a file of the preceding source sentences (an empty line for none), a file of the sentences before
            those, and so on
        preceding_target: such files with the translations of these sentences

    Raises:
        UserError: a file cannot be read, has another number of lines, or has an empty line where a text is needed.
    """
    texts = {path: read_lines(path) for path in (reference, *contrastive, *preceding, *preceding_target)}
    texts[source] = read_sentences(source)
    count = len(texts[source])
    for path, lines in texts.items():
        check_length(path, len(lines), source, count)
    check_order(preceding, [texts[path] for path in preceding])
    examples = []
    for line in range(count):
        wrong = [texts[path][line] for path in contrastive if texts[path][line]]
        for path, is_there in (
            (source, texts[source][line]),
            (reference, texts[reference][line]),
            (contrastive[0], wrong),
        ):
            if not is_there:
                raise UserError(f"{path}: line {line + 1} is empty")
        translations = [texts[reference][line], *wrong]
        before, before_target = ([texts[path][line] for path in paths[::-1]] for paths in (preceding, preceding_target))
        targets = [before_target] * len(translations) if preceding_target else None
        examples.append(_example(f"{source}: line {line + 1}", texts[source][line], before, translations, {}, targets))
    return examples
