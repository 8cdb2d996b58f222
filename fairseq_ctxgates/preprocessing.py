"""What the commands in ``preprocess/`` have in common."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path
from typing import Iterator, List, Tuple

from fairseq import utils
from fairseq.data import data_utils

from fairseq_ctxgates.data.side_stream import Split, find_splits
from fairseq_ctxgates.errors import UserError


def add_data_options(parser: argparse.ArgumentParser, several: str) -> None:
    """The data directory and the languages; ``several`` says what is done with more than one directory."""
    parser.add_argument("data", help=f"data directory, or several as for fairseq-train (a:b): {several}")
    parser.add_argument("-s", "--source-lang", metavar="LANG", help="source language (found from the files)")
    parser.add_argument("-t", "--target-lang", metavar="LANG", help="target language (found from the files)")


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
