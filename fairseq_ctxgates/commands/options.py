"""Options that several commands have in common."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Tuple

from fairseq import utils
from fairseq.data import data_utils

from fairseq_ctxgates.data.data_directory import Split, find_splits
from fairseq_ctxgates.errors import UserError


def add_data_options(parser: argparse.ArgumentParser, several: str) -> None:
    """The data directory and the languages; ``several`` says what is done with more than one directory."""
    parser.add_argument("data", help=f"data directory, or several as for fairseq-train (a:b): {several}")
    parser.add_argument("-s", "--source-lang", metavar="LANG", help="source language (found from the files)")
    parser.add_argument("-t", "--target-lang", metavar="LANG", help="target language (found from the files)")


def positive(text: str) -> int:
    """A number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def find_data(args: argparse.Namespace) -> Tuple[List[Path], List[Split]]:
    """The data directories that the options of :func:`add_data_options` name, and every split in them.

    Raises:
        UserError: a directory, or the language pair in it, does not exist.
    """
    data_dirs = [Path(path) for path in utils.split_paths(args.data)]
    languages = language_pair(args, data_dirs[0])
    return data_dirs, [split for data_dir in data_dirs for split in find_splits(data_dir, *languages)]


def language_pair(args: argparse.Namespace, data_dir: Path) -> Tuple[str, str]:
    """The languages the user named, or those of the files as fairseq finds them."""
    if args.source_lang and args.target_lang:
        return args.source_lang, args.target_lang
    if not data_dir.is_dir():
        raise UserError(f"{data_dir} is not a directory: give the --destdir of fairseq-preprocess")
    pair = data_utils.infer_language_pair(str(data_dir))
    if args.target_lang == pair[0] or args.source_lang == pair[1]:
        pair = pair[::-1]
    source_lang, target_lang = args.source_lang or pair[0], args.target_lang or pair[1]
    if source_lang is None or target_lang is None:
        raise UserError(f"{data_dir} holds no data of any language pair: give the --destdir of fairseq-preprocess")
    return source_lang, target_lang


def split_and_files(text: str) -> Tuple[str, List[Path]]:
    """``train=a.docids:b.docids`` as the name of the split and the files for each data directory."""
    name, equals, files = text.partition("=")
    if not (name and equals and files):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form SPLIT=FILE, as train=train.docids")
    return name, [Path(path) for path in utils.split_paths(files)]


def files_of_splits(
    option: str, named: Sequence[Tuple[str, List[Path]]], data_dirs: Sequence[Path], splits: Sequence[Split]
) -> Dict[Split, Path]:
    """The file of each split that an option of :func:`split_and_files` names.

    Raises:
        UserError: it names splits that are not there, a split twice, or another number of files than of directories
    """
    by_place = {(split.data_dir, split.name): split for split in splits}
    found: Dict[Split, Path] = {}
    for name, files in named:
        if len(files) != len(data_dirs):
            raise UserError(f"{option} {name}: {len(files)} files for {len(data_dirs)} data directories")
        for data_dir, file in zip(data_dirs, files):
            split = by_place.get((data_dir, name))
            if split is None:
                there = ", ".join(split.name for split in splits if split.data_dir == data_dir)
                raise UserError(f"{option} {name}: {data_dir} has no such split; it has {there}")
            if split in found:
                raise UserError(f"{option} names {name} twice")
            found[split] = file
    return found


@contextlib.contextmanager
def whole_or_not_at_all() -> Iterator[None]:
    """Let a terminated run remove what it has half written, as an interrupted one does, and tell the user of errors of
    the file system."""
    default = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise UserError(f"{place}{error.strerror or error}; what was half written is removed") from error
    finally:
        signal.signal(signal.SIGTERM, default)
