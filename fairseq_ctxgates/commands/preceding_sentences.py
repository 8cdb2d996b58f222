"""Add the preceding sentences of Kuang and Xiong (2018) to a data directory that was binarized in document order.

    ctxgates preceding-sentences data-bin/X -s en -t de --documents train=train.docids valid=valid.docids
    ctxgates preceding-sentences data-bin/X -s en -t de --blank-line-separated train=train.en valid=valid.en
    ctxgates preceding-sentences data-bin/X -s en -t de --one-document

The command writes ``train.preceding.en-de.{bin,idx,json}`` and so on. They hold, for each sentence, the row of the
preceding sentence in the same document. ``python preprocess/preceding_sentences.py`` is the same command.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

import numpy as np

from fairseq_ctxgates.command_line import (
    CommandParser,
    find_data,
    make_data_parser,
    match_files_to_splits,
    not_named,
    split_and_files,
)
from fairseq_ctxgates.data.data_directory import Split, fingerprint
from fairseq_ctxgates.data.side_stream_files import lock_streams, write_side_streams
from fairseq_ctxgates.files import clean_up_on_failure
from fairseq_ctxgates.inter_sentence.documents import (
    find_preceding_sentences,
    read_blank_line_separated,
    read_document_names,
)
from fairseq_ctxgates.inter_sentence.preceding_rows import NONE
from fairseq_ctxgates.inter_sentence.preceding_stream import PrecedingStream


def get_parser() -> CommandParser:
    """The command's options."""
    parser = make_data_parser(
        "Add to a data directory, for each sentence, the row of the preceding sentence. The directory is one that "
        "fairseq-preprocess made from text in document order. A split without documents gets no stream.",
        several_directories="each gets its own streams, and FILE names one file for each directory with the split, a:b",
    )
    documents = parser.add_mutually_exclusive_group(required=True)
    documents.add_argument(
        "--documents",
        action="extend",
        nargs="+",
        type=split_and_files,
        metavar="SPLIT=FILE",
        help="file with the name of each sentence's document, one line for each sentence",
    )
    documents.add_argument(
        "--blank-line-separated",
        action="extend",
        nargs="+",
        type=split_and_files,
        metavar="SPLIT=FILE",
        help="the text that was binarized (source or target), with a blank line between two documents",
    )
    documents.add_argument("--one-document", action="store_true", help="each split is one document")
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    """Run the command.

    Raises:
        UserError: the data cannot be read or do not fit the documents, or the streams cannot be written
    """
    args = get_parser().parse_args(argv)
    with clean_up_on_failure():
        data_dirs, splits = find_data(args)
        # All input is read and checked before the first file is written.
        files = find_files(args, data_dirs, splits)
        is_empty = {split: find_empty_rows(split) for split in files}
        documents = {split: find_documents(args, split, file, is_empty[split]) for split, file in files.items()}
        preceding = {split: find_preceding_sentences(ids, is_empty[split]) for split, ids in documents.items()}
        with lock_streams(PrecedingStream.name, splits, "ctxgates preceding-sentences"):
            write_preceding(preceding, document_sources(args))
    report(preceding, is_empty)
    for split in splits:
        if split not in preceding:
            print(not_named(split, PrecedingStream.exists(split)))


def find_files(
    args: argparse.Namespace, data_dirs: Sequence[Path], splits: Sequence[Split]
) -> Mapping[Split, Optional[Path]]:
    """The file that says where the documents of a split begin, for each split that the options name; None if each split
    is one document."""
    if args.one_document:
        return dict.fromkeys(splits)
    if args.documents:
        return match_files_to_splits("--documents", args.documents, data_dirs, splits)
    return match_files_to_splits("--blank-line-separated", args.blank_line_separated, data_dirs, splits)


def find_documents(args: argparse.Namespace, split: Split, file: Optional[Path], is_empty: np.ndarray) -> np.ndarray:
    """The number of each sentence's document, (sentences,), from the split's file in :func:`find_files`."""
    if file is None:
        return np.zeros(len(is_empty), dtype=np.int64)
    read = read_document_names if args.documents else read_blank_line_separated
    return read(file, is_empty, f"{split.data_dir}/{split.name}")


def find_empty_rows(split: Split) -> np.ndarray:
    """Which source sentences have no word, only the end of sentence; (sentences,) bool."""
    sources = split.load_language(split.source_lang)  # keeps alive the memory map that holds the sizes
    return np.asarray(sources.sizes <= 1)


def document_sources(args: argparse.Namespace) -> Dict[str, str]:
    """For each split's name, the option that gave its documents, for the JSON file of the stream."""
    given = [("--documents", args.documents), ("--blank-line-separated", args.blank_line_separated)]
    return {
        name: f"{option} {name}={':'.join(path.name for path in paths)}"
        for option, values in given
        for name, paths in values or []
    }


def write_preceding(preceding: Dict[Split, np.ndarray], sources: Dict[str, str]) -> None:
    """Write the streams of all splits, or none.

    Args:
        preceding: the row of each sentence's preceding sentence or ``NONE``, (sentences,)
        sources: from :func:`document_sources`
    """
    streams = {
        split.stream_prefix(PrecedingStream.name): {
            "fingerprint": fingerprint(split, PrecedingStream.languages),
            "made_from": sources.get(split.name, "--one-document"),
        }
        for split in preceding
    }
    with write_side_streams(streams, np.int64) as writers:
        for writer, rows in zip(writers.values(), preceding.values()):
            writer.add_all(rows[rows != NONE], rows != NONE)


def report(preceding: Mapping[Split, np.ndarray], empty: Mapping[Split, np.ndarray]) -> None:
    """Print, for each split, how many sentences have a preceding sentence, are first in a document, or are empty.

    Args:
        preceding: as for :func:`write_preceding`
        empty: from :func:`find_empty_rows`
    """
    columns = ("sentences", "preceded", "first", "empty")
    print(f"{'':<40} " + " ".join(f"{column:>10}" for column in columns))
    for split, rows in preceding.items():
        is_empty = empty[split]
        is_preceded = rows != NONE
        counts = (len(rows), is_preceded.sum(), (~is_preceded & ~is_empty).sum(), is_empty.sum())
        name = str(split.stream_prefix(PrecedingStream.name))
        print(f"{name:<40} " + " ".join(f"{count:>10,}" for count in counts))
    print(
        "preceded: with a preceding sentence; first: first of their document, or after an empty line; empty: empty "
        "lines"
    )
