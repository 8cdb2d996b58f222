"""Add the preceding sentences of Kuang and Xiong (2018) to a data directory that was binarized in document order.

    ctxgates preceding-sentences data-bin/X -s en -t de --documents train=train.docids valid=valid.docids
    ctxgates preceding-sentences data-bin/X -s en -t de --blank-line-separated train=train.en valid=valid.en
    ctxgates preceding-sentences data-bin/X -s en -t de --one-document

For each sentence the row of the one before it in the same document: ``train.preceding.en-de.{bin,idx,json}`` and so on.
``python preprocess/preceding_sentences.py`` is the same command.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import zlib
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

if __name__ == "__main__":  # run in a clone, where the package need not be installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fairseq import utils

from fairseq_ctxgates.data.preceding_sentences import NONE, PrecedingSentences
from fairseq_ctxgates.data.side_stream import SideStreamWriter, Split, fingerprint
from fairseq_ctxgates.errors import UserError, exit_on_user_error
from fairseq_ctxgates.preprocessing import add_data_options, find_data, whole_or_not_at_all


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        description="Add to a directory that fairseq-preprocess made from text in document order, for every sentence, "
        "the row of the one before it. Splits that are not named get no stream.",
    )
    add_data_options(parser, "a stream in each; then FILE names one file for each directory, a:b")
    documents = parser.add_mutually_exclusive_group(required=True)
    documents.add_argument(
        "--documents",
        nargs="+",
        type=split_and_files,
        metavar="SPLIT=FILE",
        help="the name of the document of each sentence, a line a sentence",
    )
    documents.add_argument(
        "--blank-line-separated",
        nargs="+",
        type=split_and_files,
        metavar="SPLIT=FILE",
        help="the text that was binarized (either side), with a blank line between two documents",
    )
    documents.add_argument("--one-document", action="store_true", help="each split is one document")
    return parser


def split_and_files(text: str) -> Tuple[str, List[Path]]:
    """``train=a.docids:b.docids`` as the name of the split and the files for each data directory."""
    name, equals, files = text.partition("=")
    if not (name and equals and files):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form SPLIT=FILE, as train=train.docids")
    return name, [Path(path) for path in utils.split_paths(files)]


def main(argv: Optional[List[str]] = None) -> None:
    """Run the command.

    Raises:
        UserError: the data cannot be read or do not fit the documents, or the streams cannot be written
    """
    args = get_parser().parse_args(argv)
    with whole_or_not_at_all():
        data_dirs, splits = find_data(args)
        # Everything is read and checked before anything is written.
        documents = find_documents(args, data_dirs, splits)
        rows = {split: preceding_rows(numbers, empty_rows(split)) for split, numbers in documents.items()}
        fingerprints = {split: fingerprint(split, PrecedingSentences.sides) for split in rows}
        for split in rows:
            write_stream(split, rows[split], fingerprints[split])
        report(rows)
        for split in splits:
            if split not in rows:
                print(f"{split.data_dir}/{split.name}: not named, no stream written")


def find_documents(
    args: argparse.Namespace, data_dirs: Sequence[Path], splits: Sequence[Split]
) -> Dict[Split, np.ndarray]:
    """The number of the document of each row, in each split that the options name."""
    if args.one_document:
        return {split: np.zeros(len(empty_rows(split)), dtype=np.int64) for split in splits}
    if args.documents:
        option, read, named = "--documents", read_names, args.documents
    else:
        option, read, named = "--blank-line-separated", read_blank_line_separated, args.blank_line_separated
    by_place = {(split.data_dir, split.name): split for split in splits}
    documents: Dict[Split, np.ndarray] = {}
    for name, files in named:
        if len(files) != len(data_dirs):
            raise UserError(f"{option} {name}: {len(files)} files for {len(data_dirs)} data directories")
        for data_dir, file in zip(data_dirs, files):
            split = by_place.get((data_dir, name))
            if split is None:
                there = ", ".join(split.name for split in splits if split.data_dir == data_dir)
                raise UserError(f"{option} {name}: {data_dir} has no such split; it has {there}")
            if split in documents:
                raise UserError(f"{option} names {name} twice")
            documents[split] = read(file, split)
    return documents


def empty_rows(split: Split) -> np.ndarray:
    """Which source sentences hold nothing but the end of sentence."""
    sources = split.load_side(split.source_lang)  # its sizes are in its memory map, which goes when it goes
    return np.asarray(sources.sizes <= 1)


def read_lines(path: Path) -> List[str]:
    """The lines of a text file, which may be compressed with gzip, without the white space around them."""
    if not path.exists():
        raise UserError(f"{path} not found: check the path")
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} is no whole gzip file ({error}): make it again") from error
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not text in UTF-8 ({error.reason}); convert the file") from error
    if not lines[-1]:
        lines.pop()
    return [line.strip() for line in lines]


def read_names(path: Path, split: Split) -> np.ndarray:
    """The documents of a file with the name of each row's."""
    names = read_lines(path)
    sentences = len(empty_rows(split))
    if len(names) != sentences:
        raise UserError(
            f"{path} names the documents of {len(names)} sentences, but {split.data_dir}/{split.name} has {sentences}: "
            f"give the file that lies beside the text that was binarized"
        )
    if "" in names:
        raise UserError(f"{path}, line {names.index('') + 1}: no document is named; each sentence needs a name")
    runs = Counter(name for name, _ in groupby(names))
    again = [name for name, number in runs.items() if number > 1]
    if again:
        print(
            f"warning: {path}: {len(again)} documents come back after others, the first of them {again[0]!r}, and are "
            f"taken as new ones: is the text in document order?",
            file=sys.stderr,
        )
    return np.cumsum([0, *(name != before for before, name in zip(names, names[1:]))])


def read_blank_line_separated(path: Path, split: Split) -> np.ndarray:
    """The documents of a text in which they are separated by blank lines; the data may have the blank lines as rows, or
    not."""
    is_blank = np.array([not line for line in read_lines(path)], dtype=bool)
    numbers = np.cumsum(is_blank)
    is_empty = empty_rows(split)
    if len(is_blank) == len(is_empty):
        wrong = np.flatnonzero(is_blank != is_empty)
        if len(wrong):
            raise UserError(
                f"{path}, line {wrong[0] + 1}: blank in one of text and data {split.data_dir}/{split.name}, and not in "
                f"the other: give the text that was binarized"
            )
        return numbers
    if len(is_blank) - is_blank.sum() == len(is_empty):
        return numbers[~is_blank]
    raise UserError(
        f"{path} has {len(is_blank) - is_blank.sum()} sentences and {is_blank.sum()} blank lines, but "
        f"{split.data_dir}/{split.name} has {len(is_empty)} sentences: give the text that was binarized"
    )


def preceding_rows(documents: np.ndarray, is_empty: np.ndarray) -> np.ndarray:
    """For each row the row before it, where it is of the same document and neither is empty, else -1: as in
    fairseq-interactive, an empty line ends a document."""
    has_one = np.zeros(len(documents), dtype=bool)
    has_one[1:] = (documents[1:] == documents[:-1]) & ~is_empty[1:] & ~is_empty[:-1]
    return np.where(has_one, np.arange(-1, len(documents) - 1), NONE)


def write_stream(split: Split, rows: np.ndarray, digests: Dict[str, str]) -> None:
    """Write the stream of a split, whose fingerprint is given, beside it."""
    with SideStreamWriter(split.stream_prefix(PrecedingSentences.name), np.int64, {"fingerprint": digests}) as writer:
        for row in rows:
            writer.add(np.array([row] if row != NONE else [], dtype=np.int64))


def report(rows: Dict[Split, np.ndarray]) -> None:
    """Print how many sentences of each split have a preceding one, and why the others have none."""
    columns = ("sentences", "preceded", "first", "empty")
    print(f"{'':<40} " + " ".join(f"{column:>10}" for column in columns))
    for split, preceding in rows.items():
        is_empty = empty_rows(split)
        is_preceded = preceding != NONE
        counts = (len(preceding), is_preceded.sum(), (~is_preceded & ~is_empty).sum(), is_empty.sum())
        name = str(split.stream_prefix(PrecedingSentences.name))
        print(f"{name:<40} " + " ".join(f"{count:>10,}" for count in counts))
    print("preceded: have a preceding sentence; the others are the first of their document, or empty lines")


if __name__ == "__main__":
    with exit_on_user_error():
        main()
