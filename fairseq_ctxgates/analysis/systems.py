"""The systems that an analysis compares: their names, their translations, and the references."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Collection, Dict, List, Optional, Sequence, Tuple

from sacrebleu.metrics import BLEU

from fairseq_ctxgates.analysis.options import add_file_option, add_names_option
from fairseq_ctxgates.command_line import add_subword_option
from fairseq_ctxgates.data.subwords import JOINABLE, join_subwords
from fairseq_ctxgates.errors import UserError, one_line
from fairseq_ctxgates.files import read_lines

# A line of fairseq-generate or fairseq-interactive: the translation of a sentence, detokenized (D) or not (H).
TRANSLATION = re.compile(r"(?P<kind>[DH])-(?P<number>\d+)\t-?(?:\d\S*|inf|nan)\t?(?P<text>.*)")


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the translations of several systems and their references, named as in ``fairseq-score``."""
    add_file_option(
        parser,
        "--sys",
        "the translations of each system, the baseline first: plain text, one sentence per line, or the output of "
        "fairseq-generate",
        several=True,
        required=True,
    )
    add_names_option(parser, "systems", "--sys")
    add_reference_options(parser)


def add_reference_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the references, and for how sacreBLEU reads both references and translations."""
    help_text = "the reference translations: plain text, one sentence per line; several files are several references"
    add_file_option(parser, "--ref", help_text, several=True, required=True)
    parser.add_argument(
        "--tokenize",
        choices=BLEU.TOKENIZERS,
        metavar="NAME",
        default=BLEU.TOKENIZER_DEFAULT,
        help=f"sacreBLEU's tokenizer: {', '.join(BLEU.TOKENIZERS)} (default: %(default)s; none for tokenized text)",
    )
    parser.add_argument("--lowercase", action="store_true", help="case-insensitive scores")
    add_subword_option(parser, JOINABLE, "subword_nmt", "join the subwords of all text")


def bleu_metric(args: argparse.Namespace, force: bool = False) -> BLEU:
    """sacreBLEU's BLEU with the options of :func:`add_reference_options`. It warns if the text looks tokenized, unless
    the tokenizer is "none" or ``force`` is set.

    Raises:
        UserError: the tokenizer needs a package that is not installed, or a download that failed.
    """
    try:
        return BLEU(lowercase=args.lowercase, tokenize=args.tokenize, force=force or args.tokenize == "none")
    except (ImportError, OSError, RuntimeError) as error:
        raise UserError(f"--tokenize {args.tokenize}: {one_line(error)}") from error


def system_names(paths: Sequence[object], names: Optional[Sequence[str]] = None) -> List[str]:
    """A name for each system: the given names, or the parts of the files' paths in which they differ.

    Raises:
        UserError: the number of names is not that of the systems, or two names are the same.
    """
    if names is None:
        names = distinct_parts([Path(str(path)) for path in paths])
    if len(names) != len(paths):
        raise UserError(f"--names has {len(names)} names for {len(paths)} systems")
    if len(set(names)) != len(names):
        raise UserError(f"two systems have the same name ({', '.join(names)}): check the files, or give other --names")
    return list(names)


def check_columns(names: Sequence[str], columns: Collection[str]) -> None:
    """Raise UserError where a system has the name of one of a table's other columns."""
    for name in names:
        if name in columns:
            raise UserError(f"a system is named {name!r}, like a column of the table: give another name by --names")


def distinct_parts(paths: Sequence[Path]) -> List[str]:
    """The paths without their extensions, and without the folders and file name that all paths share."""
    # The end of a number, as in lambda=0.5, is not an extension.
    without = [path if path.suffix[1:].isdecimal() else path.with_suffix("") for path in paths]
    parts = [list(path.parts) for path in (without if len(set(without)) == len(paths) else paths)]
    while len(paths) > 1 and min(map(len, parts)) > 1 and _all_equal([part[-1] for part in parts]):
        parts = [part[:-1] for part in parts]
    while min(map(len, parts)) > 1 and _all_equal([part[0] for part in parts]):
        parts = [part[1:] for part in parts]
    return ["/".join(part) for part in parts]


def _all_equal(values: Sequence[object]) -> bool:
    return len(set(values)) == 1


def read_sentences(path: Path) -> List[str]:
    """The sentences of a text, one on each line.

    Raises:
        UserError: the file cannot be read, is empty or not UTF-8.
    """
    lines = read_lines(path)
    if not lines:
        raise UserError(f"{path} is empty")
    return lines


def read_translations(path: Path) -> List[str]:
    """The translations in a file, in the order of the sentences.

    The file is plain text or the output of fairseq-generate. From the output of fairseq-generate, the best translation
    of each sentence is taken, detokenized if fairseq-generate detokenized it.

    Raises:
        UserError: the file cannot be read, or lacks a sentence.
    """
    lines = read_sentences(path)
    found: Dict[Tuple[str, int], str] = {}
    for match in filter(None, map(TRANSLATION.fullmatch, lines)):
        found.setdefault((match["kind"], int(match["number"])), match["text"])  # the first of an n-best list
    if not found:
        return lines
    kind = "D" if any(kind == "D" for kind, _ in found) else "H"
    rows = [row for found_kind, row in found if found_kind == kind]
    missing = sorted(set(range(max(rows) + 1)) - set(rows))
    if missing:
        raise UserError(
            f"{path} lacks the translations of {len(missing)} sentences, the first {kind}-{missing[0]}: was the file "
            f"cut, or a sentence too long for the model? Without --task context_translation, fairseq may drop sentences"
        )
    return [found[kind, row] for row in range(len(rows))]


def read_systems_and_references(args: argparse.Namespace) -> Tuple[List[Tuple[str, List[str]]], List[List[str]]]:
    """The systems, each (name, translations), and the references that the options of :func:`add_text_options` name.

    Raises:
        UserError: a file cannot be read, or has another number of sentences than the first reference.
    """
    names = system_names(args.sys, args.names)
    references = read_references(args)
    translations = [join_subwords(read_translations(path), args.remove_bpe) for path in args.sys]
    for path, lines in zip(args.sys, translations):
        check_length(path, len(lines), args.ref[0], len(references[0]))
    return list(zip(names, translations)), references


def read_references(args: argparse.Namespace) -> List[List[str]]:
    """The references that the options of :func:`add_reference_options` name.

    Raises:
        UserError: a file cannot be read, or has another number of sentences than the first.
    """
    references = [join_subwords(read_sentences(path), args.remove_bpe) for path in args.ref]
    for path, lines in zip(args.ref, references):
        check_length(path, len(lines), args.ref[0], len(references[0]))
    return references


def check_length(path: object, length: int, other: object, expected: int) -> None:
    """Raise UserError unless two texts have as many sentences."""
    if length != expected:
        raise UserError(f"{path} has {length} sentences, {other} has {expected}: they must be of the same text")
