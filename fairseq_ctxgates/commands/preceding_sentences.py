"""Add the preceding sentences of Kuang and Xiong (2018) to a data directory that was binarized in document order.

    ctxgates preceding-sentences data-bin/X -s en -t de --documents train=train.docids valid=valid.docids
    ctxgates preceding-sentences data-bin/X -s en -t de --blank-line-separated train=train.en valid=valid.en
    ctxgates preceding-sentences data-bin/X -s en -t de --one-document

For each sentence the row of the one before it in the same document: ``train.preceding.en-de.{bin,idx,json}`` and so on.
``python preprocess/preceding_sentences.py`` is the same command.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import numpy as np

from fairseq_ctxgates.commands.options import (
    add_data_options,
    files_of_splits,
    find_data,
    split_and_files,
    whole_or_not_at_all,
)
from fairseq_ctxgates.data.data_directory import Split, fingerprint
from fairseq_ctxgates.data.side_stream import SideStreamWriter
from fairseq_ctxgates.inter_sentence.documents import preceding_rows, read_blank_line_separated, read_names
from fairseq_ctxgates.inter_sentence.preceding_sentences import NONE, PrecedingSentences


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
        fingerprints = {split: fingerprint(split, PrecedingSentences.languages) for split in rows}
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
    files = files_of_splits(option, named, data_dirs, splits)
    return {split: read(file, empty_rows(split), f"{split.data_dir}/{split.name}") for split, file in files.items()}


def empty_rows(split: Split) -> np.ndarray:
    """Which source sentences hold nothing but the end of sentence."""
    sources = split.load_language(split.source_lang)  # its sizes are in its memory map, which goes when it goes
    return np.asarray(sources.sizes <= 1)


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
