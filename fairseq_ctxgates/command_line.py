"""Command-line options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from fairseq import utils

from fairseq_ctxgates.configuration import as_flag
from fairseq_ctxgates.data.data_directory import Split, find_language_pairs, find_splits
from fairseq_ctxgates.errors import UserError

LARGEST = 10**9  # the largest number in an option: what compiled code, NumPy and semaphores can hold


class DefaultsHelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default to the help text of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> Optional[str]:
        return super()._get_help_string(action) if action.default else action.help


class Condition(NamedTuple):
    """A condition without which some options have no effect.

    Attributes:
        needs: the condition in words
        holds: whether the parsed options of a command line meet the condition
        options: the names of the options that depend on it
    """

    needs: str
    holds: Callable[[argparse.Namespace], object]
    options: Tuple[str, ...]


class CommandParser(argparse.ArgumentParser):
    """A parser that refuses options that would have no effect together with the others, and shows defaults. A command
    states the condition for such options where it adds them. If they are given although the condition does not hold,
    the command stops with status 2, as argparse does."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=DefaultsHelpFormatter, **settings)
        self.conditions: List[Condition] = []

    def add_condition(self, needs: str, holds: Callable[[argparse.Namespace], object], *options: str) -> None:
        """State that options have an effect only if a condition holds; see :class:`Condition`. The options must be
        added before the arguments are parsed."""
        self.conditions.append(Condition(needs, holds, options))

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but every option given must have an effect."""
        parsed = super().parse_args(args, namespace)
        options = [name for condition in self.conditions for name in condition.options]
        # Parsed once more without the options' defaults, since a user may also give the default itself.
        given = super().parse_args(args, argparse.Namespace(**{name: None for name in options if name in parsed}))
        for condition in self.conditions:
            for name in condition.options:
                if getattr(given, name) is not None and not condition.holds(parsed):
                    self.error(f"{as_flag(name)} would do nothing: it needs {condition.needs}")
        return parsed


def make_data_parser(description: str, several_directories: str) -> CommandParser:
    """A parser for the data directory and the two languages, see :func:`find_data`.

    Args:
        description: what the command does
        several_directories: what the command does with more than one data directory
    """
    parser = CommandParser(description=description)
    parser.add_argument("data", help=f"data directory, or several as for fairseq-train (a:b): {several_directories}")
    for letter, role in (("s", "source"), ("t", "target")):
        help_text = f"{role} language (default: from the file names)"
        parser.add_argument(f"-{letter}", f"--{role}-lang", metavar="LANG", help=help_text)
    return parser


def add_subword_option(parser: argparse.ArgumentParser, kinds: Sequence[str], default: str, purpose: str) -> None:
    """Add ``--remove-bpe``, which means what it does in ``fairseq-generate``, also under its other name and without a
    value.

    Args:
        kinds: the kinds of subwords that the command can join
    """
    parser.add_argument(
        "--remove-bpe",
        "--post-process",
        nargs="?",
        choices=kinds,
        metavar="KIND",
        const="subword_nmt",
        default=default,
        help=f"{purpose}: {', '.join(kinds)} (default: %(default)s; alone: subword_nmt, whose mark is @@)",
    )


def positive(text: str) -> int:
    """The type of an option whose value is an integer from 1."""
    return _integer(text, 1)


def seed(text: str) -> int:
    """The type of an option whose value seeds random numbers: an integer from 0."""
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} to {LARGEST:,}")
    return int(text)


def find_data(args: argparse.Namespace) -> Tuple[List[Path], List[Split]]:
    """The data directories that the options of :func:`make_data_parser` name, and all splits in them.

    Raises:
        UserError: a directory does not exist, is named twice, or has no data of the language pair
    """
    data_dirs = [Path(path) for path in utils.split_paths(args.data)]
    for index, data_dir in enumerate(data_dirs):
        if data_dir.resolve() in (other.resolve() for other in data_dirs[:index]):
            raise UserError(f"{data_dir} is named twice: name each data directory once")
    languages = language_pair(args, data_dirs[0])
    return data_dirs, [split for data_dir in data_dirs for split in find_splits(data_dir, *languages)]


def language_pair(args: argparse.Namespace, data_dir: Path) -> Tuple[str, str]:
    """The source and the target language: from the options, otherwise from the names of the data. If one language is
    given, the data may have been binarized in the other direction.

    Raises:
        UserError: the names leave several pairs, or none
    """
    given = args.source_lang, args.target_lang
    if all(given):
        return given
    pairs = find_language_pairs(data_dir)
    for candidates in (pairs, [pair[::-1] for pair in pairs]):
        fitting = [pair for pair in candidates if all(lang in (None, own) for lang, own in zip(given, pair))]
        if len(fitting) > 1:
            names = ", ".join(map("-".join, fitting))
            raise UserError(
                f"{data_dir} holds data of several language pairs, {names}: give --source-lang and --target-lang"
            )
        if fitting:
            return fitting[0]
    raise UserError(
        f"{data_dir} holds data of {', '.join(map('-'.join, pairs))}: check "
        f"{' and '.join(as_flag(name) for name in ('source_lang', 'target_lang') if getattr(args, name))}"
    )


def split_and_files(text: str) -> Tuple[str, List[Path]]:
    """The type of an option ``train=a.docids:b.docids``: the split's name, and one file for each data directory that
    has the split."""
    name, equals, files = text.partition("=")
    if not (name and equals and files):
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form SPLIT=FILE, such as train=train.docids")
    return name, [Path(path) for path in utils.split_paths(files)]


def not_named(split: Split, has_stream: bool) -> str:
    """What a command prints for a split that its options do not name, and that may have a stream of an earlier run."""
    what = "its stream stays as it is" if has_stream else "no stream written"
    return f"{split.data_dir}/{split.name}: not named, {what}"


def match_files_to_splits(
    option: str, files_by_name: Sequence[Tuple[str, List[Path]]], data_dirs: Sequence[Path], splits: Sequence[Split]
) -> Dict[Split, Path]:
    """The file of each split that an option names. Of several data directories only the first has every split, since
    fairseq reads the others for training alone.

    Args:
        option: the name of the option, for error messages
        files_by_name: the values of the option, from :func:`split_and_files`

    Raises:
        UserError: a split does not exist or is named twice, or the number of files is not that of the directories that
            have the split
    """
    matched: Dict[Split, Path] = {}
    for name, files in files_by_name:
        with_name = [split for split in splits if split.name == name]
        if not with_name:
            existing = ", ".join(split.name for split in splits if split.data_dir == data_dirs[0])
            raise UserError(f"{option} {name}: {data_dirs[0]} has no such split; its splits are {existing}")
        if len(files) != len(with_name):
            raise UserError(
                f"{option} {name}: {len(files)} files for {len(with_name)} data directories with this split: give "
                f"{name}={':'.join(['FILE'] * len(with_name))}"
            )
        if with_name[0] in matched:
            raise UserError(f"{option} names {name} twice")
        matched.update(zip(with_name, files))
    for split, file in matched.items():
        if not file.exists():
            raise UserError(f"{option} {split.name}: {file} not found: check the path")
    return matched
