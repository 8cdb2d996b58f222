"""Add the relations of the source sentences (Li, Zhu, Yan and Zhang 2022) to a binarized data directory.

    python preprocess/relations.py data-bin/X --source-lang en --target-lang de --workers 2
    ctxgates relations data-bin/X -s de -t en --extractor corenlp-dependencies
    ctxgates relations data-bin/X -s en -t de --extractor jsonl --relations train=train.jsonl valid=valid.jsonl

A parser, by default the OpenIE of Stanford CoreNLP, is given the source words of every split as they stand in the data,
and the words of each relation tuple that it finds are written as positions of tokens:
``train.relation.en-de.{bin,idx,json}`` and so on. What is done is kept in a folder beside the data until all is: an
interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import logging
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, TextIO, Tuple

import numpy as np
from fairseq import utils
from tqdm import tqdm

from fairseq_ctxgates.commands.options import (
    add_data_options,
    files_of_splits,
    find_data,
    split_and_files,
    whole_or_not_at_all,
)
from fairseq_ctxgates.commands.workers import add_worker_options, open_workers
from fairseq_ctxgates.data.data_directory import Split, fingerprint
from fairseq_ctxgates.data.side_stream import SideStreamWriter
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction import REMOVE_BPE, RelationTuple
from fairseq_ctxgates.relations.extraction.corpus import SourceText, find_distinct
from fairseq_ctxgates.relations.extraction.extractor import EXTRACTORS
from fairseq_ctxgates.relations.extraction.json_lines import open_dump, read_tuples, tuples_line
from fairseq_ctxgates.relations.extraction.shards import (
    ExtractionOptions,
    Resources,
    close_extractors,
    extract_distinct,
    fingerprint_of_work,
    remove_work,
    work_folder,
)
from fairseq_ctxgates.relations.stream import Relations, pack_tuples

Tuples = Optional[Sequence[RelationTuple]]


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        description="Add relations to a directory that fairseq-preprocess made: for every source sentence, which words "
        "belong to one relation tuple (subject, relation, object).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_data_options(parser, "a stream in each; sentences that are the same are parsed once over all")
    parser.add_argument(
        "--extractor",
        choices=(*EXTRACTORS, "jsonl"),
        default="corenlp-openie",
        help="where the tuples come from: CoreNLP's OpenIE, which knows English; the dependency trees of CoreNLP or of "
        "a Stanza pipeline; or --relations",
    )
    parser.add_argument(
        "--relations",
        nargs="+",
        type=split_and_files,
        metavar="SPLIT=FILE",
        help="tuples that are there already, for --extractor jsonl: a line of JSON for each sentence, as --dump writes "
        "them. Splits that are not named get no stream",
    )
    parser.add_argument(
        "--remove-bpe",
        "--post-process",
        nargs="?",
        choices=REMOVE_BPE,
        const="subword_nmt",
        default="subword_nmt",
        help="how sub-words are joined to the words that are parsed; words without sub-words are left as they are",
    )
    parser.add_argument("--language", metavar="LANG", help="language of the source (the source language's name)")
    parser.add_argument(
        "--dump",
        metavar="FILE",
        help="write the words and tuples of all splits to this file, as lines of JSON; of several data directories a:b",
    )
    add_worker_options(
        parser, "number of requests that are made to the servers at a time; processes with --extractor stanza"
    )
    add_server_options(parser)
    return parser


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """The options about CoreNLP's servers."""
    group = parser.add_argument_group("CoreNLP")
    group.add_argument(
        "--corenlp-url",
        action="append",
        default=[],
        metavar="URL",
        help="a server that runs already, as http://HOST:9000; given several times, they share the work. Without one a "
        "server is started here",
    )
    group.add_argument("--corenlp-memory", default="4G", metavar="SIZE", help="memory of the server that is started")
    group.add_argument("--timeout", type=seconds, default=60, metavar="SECONDS", help="what a request may take")
    group.add_argument(
        "--corenlp-property",
        action="append",
        type=name_and_value,
        default=[],
        metavar="NAME=VALUE",
        help="one more property, as depparse.model=PATH; may be given several times",
    )


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return number


def name_and_value(text: str) -> Tuple[str, str]:
    """``NAME=VALUE`` as a pair."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def main(argv: Optional[List[str]] = None) -> None:
    """Run the command.

    Raises:
        UserError: the data or the tuples cannot be read, there is no parser, or the streams cannot be written
    """
    args = get_parser().parse_args(argv)
    for name in ("stanza", "urllib3"):  # what they have to say of each start and each request
        logging.getLogger(name).setLevel(logging.WARNING)
    with whole_or_not_at_all():
        add_relations(args)


@dataclass
class Counts:
    """What the tuples of a split come to."""

    sentences: int = 0
    tuples: int = 0
    with_tuple: int = 0
    words: int = 0
    related: int = 0
    not_parsed: int = 0

    def add(self, words: int, tuples: Tuples) -> None:
        """Count one sentence."""
        self.sentences += 1
        self.words += words
        self.not_parsed += tuples is None
        self.tuples += len(tuples or [])
        self.with_tuple += bool(tuples)
        self.related += len({word for found in tuples or [] for word in found.words})


def add_relations(args: argparse.Namespace) -> None:
    """Extract or read, write, and print what was found."""
    data_dirs, splits = find_data(args)
    if (args.extractor == "jsonl") != bool(args.relations):
        raise UserError(
            "--extractor jsonl reads tuples from the files of --relations SPLIT=FILE: give both, or neither"
        )
    files = files_of_splits("--relations", args.relations or [], data_dirs, splits)
    named = [split for split in splits if split in files] if files else splits
    texts = {split: SourceText(split, args.remove_bpe) for split in named}
    digests = {split: fingerprint(split, Relations.languages) for split in named}
    dumps = dump_paths(args.dump, data_dirs)
    if files:
        options = {"extractor": "jsonl", "remove_bpe": args.remove_bpe}
        report(
            write_streams(
                texts, {split: read_tuples(files[split], texts[split]) for split in named}, options, digests, dumps
            )
        )
    else:
        extract(args, texts, digests, dumps)
    for split in splits:
        if split not in named:
            print(f"{split.data_dir}/{split.name}: not named, no stream written")


def dump_paths(names: Optional[str], data_dirs: Sequence[Path]) -> Dict[Path, Path]:
    """The file of ``--dump`` for each data directory, none where there is no such option."""
    if names is None:
        return {}
    paths = [Path(name) for name in utils.split_paths(names)]
    if len(paths) != len(data_dirs):
        raise UserError(f"--dump {names}: {len(paths)} files for {len(data_dirs)} data directories")
    for path in paths:
        if not path.parent.is_dir() or path.is_dir():
            raise UserError(f"--dump {path}: name a file in a folder that exists")
    return dict(zip(data_dirs, paths))


def extract(
    args: argparse.Namespace,
    texts: Dict[Split, SourceText],
    digests: Dict[Split, Dict[str, str]],
    dumps: Dict[Path, Path],
) -> None:
    """Extract the tuples of all texts, each sentence once, and write the streams."""
    splits = list(texts)
    language = args.language or splits[0].source_lang
    options = ExtractionOptions(args.extractor, language, args.remove_bpe, tuple(sorted(args.corenlp_property)))
    resources = Resources(tuple(args.corenlp_url), args.corenlp_memory, args.timeout)
    numbers, places = find_distinct(list(texts.values()))
    work = fingerprint_of_work(splits, list(digests.values()), options)
    folder = work_folder(splits, work)
    tell_of_other_work(folder)
    pool = ProcessPoolExecutor if args.extractor == "stanza" else ThreadPoolExecutor
    # The extractors are closed first, so that the threads of an interrupted run do not finish their shards.
    with open_workers(args, list({split.data_dir for split in splits}), pool, close_extractors) as workers:
        extracted = extract_distinct(splits, places, work, options, resources, workers.executor)
    rows = {split: (extracted[number] for number in numbers[i]) for i, split in enumerate(splits)}
    counts = write_streams(texts, rows, asdict(options), digests, dumps)
    remove_work(folder)
    report(counts)


def tell_of_other_work(folder: Path) -> None:
    """Print which other unfinished work lies beside a work folder."""
    for other in sorted(folder.parent.glob(f"{folder.stem}.*")):
        if other != folder:
            print(f"{other}: unfinished work of another run, with other data or options; remove it if it is given up")


def write_streams(
    texts: Dict[Split, SourceText],
    rows: Mapping[Split, Iterable[Tuples]],
    options: Dict[str, object],
    digests: Dict[Split, Dict[str, str]],
    dumps: Dict[Path, Path],
) -> Dict[Split, Counts]:
    """Write the streams of all splits, and the dumps, or nothing at all.

    Args:
        rows: the tuples of each sentence of each text
        options: how they were made, for the stream's JSON file
        digests: the fingerprint of each split
        dumps: where the tuples of each data directory are written for people to read
    """
    counts = {split: Counts() for split in texts}
    with ExitStack() as stack:
        streams: Dict[Path, TextIO] = {folder: stack.enter_context(open_dump(path)) for folder, path in dumps.items()}
        for split, text in texts.items():
            metadata = {"options": options, "fingerprint": digests[split]}
            prefix = split.stream_prefix(Relations.name)
            writer = stack.enter_context(SideStreamWriter(prefix, np.int32, metadata))
            # Rows come first, so that one too many is met as well.
            progress = tqdm(zip(rows[split], text), total=len(text), desc=f"writing {split.name}", unit=" sentences")
            for tuples, words in progress:
                writer.add(pack_tuples([words.token_positions(found.words) for found in tuples or []]))
                counts[split].add(len(words.words), tuples)
                if split.data_dir in streams:
                    streams[split.data_dir].write(tuples_line(split.name, words.words, tuples))
    return counts


def report(counts: Dict[Split, Counts]) -> None:
    """Print what the tuples of each split come to."""
    columns = ("sentences", "tuples each", "with a tuple", "words", "in a tuple", "not parsed")
    print(f"{'':<40} " + " ".join(f"{column:>12}" for column in columns))
    for split, found in counts.items():
        sentences, words = max(found.sentences, 1), max(found.words, 1)
        print(
            f"{split.stream_prefix(Relations.name)!s:<40} {found.sentences:>12,} {found.tuples / sentences:>12.2f} "
            f"{found.with_tuple / sentences:>12.1%} {found.words:>12,} {found.related / words:>12.1%} "
            f"{found.not_parsed:>12,}"
        )
    if any(found.not_parsed for found in counts.values()):
        print("not parsed: the parser failed, took too long, or changed the words; these sentences have no tuples")
