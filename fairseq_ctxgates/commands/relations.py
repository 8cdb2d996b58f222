"""Add the relations of the source sentences (Li, Zhu, Yan and Zhang 2022) to a binarized data directory.

    ctxgates relations data-bin/X --source-lang en --target-lang de --workers 2
    ctxgates relations data-bin/X -s de -t en --extractor corenlp-dependencies
    ctxgates relations data-bin/X -s en -t de --extractor jsonl --relations train=train.jsonl valid=valid.jsonl

A parser, by default the OpenIE of Stanford CoreNLP, extracts relation tuples from the source words of each split. The
words of each tuple are written as token positions to ``train.relation.en-de.{bin,idx,json}`` and so on. Finished shards
are kept in a folder of the data directory until all shards are finished: an interrupted run continues where it stopped.
A split whose stream was already made in the same way is not parsed again. ``python preprocess/relations.py`` is the
same command.
"""

from __future__ import annotations

import argparse
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, TextIO, Tuple

import numpy as np
from fairseq import utils
from tqdm import tqdm

from fairseq_ctxgates.command_line import (
    CommandParser,
    add_subword_option,
    find_data,
    make_data_parser,
    match_files_to_splits,
    not_named,
    split_and_files,
)
from fairseq_ctxgates.commands.workers import add_worker_options, open_workers
from fairseq_ctxgates.data.data_directory import Split, fingerprint
from fairseq_ctxgates.data.side_stream_files import Metadata, lock_streams, verified_metadata, write_side_streams
from fairseq_ctxgates.data.subwords import GROUPABLE
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import clean_up_on_failure
from fairseq_ctxgates.processes import process_pool
from fairseq_ctxgates.relations.extraction.build import (
    EXTRACTORS,
    REQUEST_TIMEOUT,
    SERVER_MEMORY,
    ExtractionOptions,
    ServerOptions,
    close_extractors,
)
from fairseq_ctxgates.relations.extraction.corpus import SourceText, find_distinct_sentences
from fairseq_ctxgates.relations.extraction.extractor import MAX_WORDS, Tuples, is_too_long
from fairseq_ctxgates.relations.extraction.json_lines import EXAMPLE, json_line, open_dump, read_tuples
from fairseq_ctxgates.relations.extraction.shards import (
    extract_distinct_sentences,
    extraction_fingerprint,
    remove_shards,
    shard_folder,
)
from fairseq_ctxgates.relations.mask import pack_tuples
from fairseq_ctxgates.relations.stream import Relations


def get_parser() -> CommandParser:
    """The command's options."""
    parser = make_data_parser(
        "Add relations to a data directory that fairseq-preprocess wrote: for each source sentence, which "
        "words belong to the same relation tuple (subject, relation, object).",
        several_directories="each gets its own streams; a sentence that occurs several times is parsed once",
    )
    add_extractor_options(parser)
    add_subword_option(parser, GROUPABLE, "subword_nmt", "join subwords to words for the parser")
    parser.add_argument(
        "--language", metavar="LANG", help="language of the source text for the parser (default: --source-lang)"
    )
    parser.add_argument(
        "--dump",
        metavar="FILE",
        help="write the words and tuples of all splits to this file, as lines of JSON; with several data directories, "
        "name a file for each, a:b",
    )
    add_worker_options(
        parser, "number of parallel requests to the servers; with --extractor stanza, number of processes"
    )
    add_failure_option(parser)
    extracts = "an --extractor that parses, not jsonl"
    parser.add_condition(extracts, lambda args: args.extractor != "jsonl", "language", "workers", "dask", "max_failed")
    add_server_options(parser)
    return parser


def add_extractor_options(parser: CommandParser) -> None:
    """Add the options that say where the tuples come from."""
    parser.add_argument(
        "--extractor",
        choices=(*EXTRACTORS, "jsonl"),
        default="corenlp-openie",
        help="what extracts the tuples: CoreNLP's OpenIE (English only), or the dependency trees of CoreNLP or of a "
        "Stanza pipeline; jsonl reads the files of --relations",
    )
    parser.add_argument(
        "--relations",
        action="extend",
        nargs="+",
        type=split_and_files,
        metavar="SPLIT=FILE",
        help="file of tuples for --extractor jsonl: one line of JSON for each sentence, in the format of --dump, such "
        f"as {EXAMPLE}. A split without a file gets no stream",
    )
    parser.add_condition("--extractor jsonl", lambda args: args.extractor == "jsonl", "relations")


def add_failure_option(parser: CommandParser) -> None:
    """Add the option that limits how many sentences the parser may fail on."""
    parser.add_argument(
        "--max-failed",
        type=share,
        default=0.01,
        metavar="SHARE",
        help="the share of the distinct sentences that may remain without relations because the parser failed on "
        "them. If there are more, the command stops; when it is run again, it goes on from there. Up to 10 sentences, "
        "but no more than half of all, are always allowed, except with 0",
    )


def add_server_options(parser: CommandParser) -> None:
    """Add the options of CoreNLP servers."""
    group = parser.add_argument_group("CoreNLP")
    group.add_argument(
        "--corenlp-url",
        action="append",
        default=[],
        metavar="URL",
        help="address of a running server, such as http://HOST:9000; may be given several times. Without this option "
        "the command starts a server",
    )
    group.add_argument(
        "--corenlp-memory", default=SERVER_MEMORY, metavar="SIZE", help="memory of the server that the command starts"
    )
    help_text = "time limit of a request"
    group.add_argument("--timeout", type=seconds, default=REQUEST_TIMEOUT, metavar="SECONDS", help=help_text)
    group.add_argument(
        "--corenlp-property",
        action="append",
        type=name_value_pair,
        default=[],
        metavar="NAME=VALUE",
        help="additional CoreNLP property, such as depparse.model=PATH; may be given several times",
    )
    servers = ("corenlp_url", "corenlp_memory", "timeout", "corenlp_property")
    extractors = [name for name in EXTRACTORS if name.startswith("corenlp")]
    parser.add_condition(f"--extractor {' or '.join(extractors)}", lambda args: args.extractor in extractors, *servers)
    started = "a server that the command starts: no --corenlp-url"
    parser.add_condition(started, lambda args: not args.corenlp_url, "corenlp_memory")


def seconds(text: str) -> float:
    """The type of an option whose value is a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def share(text: str) -> float:
    """The type of an option whose value is a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def name_value_pair(text: str) -> Tuple[str, str]:
    """The type of an option ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form NAME=VALUE")
    return name, value


def main(argv: Optional[List[str]] = None) -> None:
    """Run the command.

    Raises:
        UserError: the data or the tuples cannot be read, the parser does not run, or the streams cannot be written
    """
    args = get_parser().parse_args(argv)
    for name in ("stanza", "urllib3"):  # silence their messages about every start and every request
        logging.getLogger(name).setLevel(logging.WARNING)
    with clean_up_on_failure():
        notes, statistics = add_relations(args)
    if statistics:
        report(statistics)
    for note in notes:
        print(note)


@dataclass
class RelationStatistics:
    """The number of sentences, words and tuples of a split; a tuple without words is not counted.

    Attributes:
        with_tuple: sentences with a tuple
        related: words in a tuple
        not_parsed: sentences that could not be parsed
        too_long: sentences among these that have too many words for the parser
    """

    sentences: int = 0
    tuples: int = 0
    with_tuple: int = 0
    words: int = 0
    related: int = 0
    not_parsed: int = 0
    too_long: int = 0

    def add(self, words: Sequence[str], tuples: Tuples) -> None:
        """Count one sentence."""
        self.sentences += 1
        self.words += len(words)
        self.not_parsed += tuples is None
        self.too_long += tuples is None and is_too_long(words)
        groups = [entry.words for entry in tuples or [] if entry.words]
        self.tuples += len(groups)
        self.with_tuple += bool(groups)
        self.related += len({word for words in groups for word in words})


def add_relations(args: argparse.Namespace) -> Tuple[List[str], Dict[Split, RelationStatistics]]:
    """Extract or read the tuples, and write the streams; returns a line for each split without a new stream, and the
    numbers of those with one."""
    data_dirs, splits = find_data(args)
    if args.extractor == "jsonl" and not args.relations:
        raise UserError("--extractor jsonl reads tuples from files: give --relations SPLIT=FILE")
    files = match_files_to_splits("--relations", args.relations or [], data_dirs, splits)
    named = [split for split in splits if split in files] if files else splits
    texts = {split: SourceText(split, args.remove_bpe) for split in named}
    digests = {split: fingerprint(split, Relations.languages) for split in named}
    dumps = dump_paths(args.dump, data_dirs)
    with lock_streams(Relations.name, splits, "ctxgates relations"):
        if files:
            rows = {split: read_tuples(files[split], texts[split]) for split in named}
            options = {"extractor": "jsonl", "remove_bpe": args.remove_bpe}
            notes = [not_named(split, Relations.exists(split)) for split in splits if split not in files]
            return notes, write_streams(texts, rows, options, digests, dumps)
        return extract(args, texts, digests, dumps)


def dump_paths(names: Optional[str], data_dirs: Sequence[Path]) -> Dict[Path, Path]:
    """The file of ``--dump`` for each data directory; empty without this option."""
    if names is None:
        return {}
    paths = [Path(name) for name in utils.split_paths(names)]
    if len(paths) != len(data_dirs):
        raise UserError(f"--dump {names}: {len(paths)} files for {len(data_dirs)} data directories")
    for path in paths:
        if not path.parent.is_dir() or path.is_dir():
            raise UserError(f"--dump {path}: name a file in an existing folder")
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError(f"--dump {names}: name another file for each data directory")
    return dict(zip(data_dirs, paths))


def extract(
    args: argparse.Namespace,
    texts: Dict[Split, SourceText],
    digests: Dict[Split, Dict[str, str]],
    dumps: Dict[Path, Path],
) -> Tuple[List[str], Dict[Split, RelationStatistics]]:
    """Extract the tuples of each distinct sentence, and write the streams of all splits, but not of those that have the
    same stream already; with ``--dump``, which needs the words of all splits, of all. Returns as :func:`add_relations`.
    """
    language = args.language or next(iter(texts)).source_lang
    options = ExtractionOptions(args.extractor, language, args.remove_bpe, tuple(sorted(args.corenlp_property)))
    kept = [] if dumps else [split for split in texts if has_same_stream(split, asdict(options), digests[split])]
    notes = [
        f"{split.stream_prefix(Relations.name)}: kept, made before with the same options; to make it again, remove its "
        f"JSON file"
        for split in kept
    ]
    texts = {split: text for split, text in texts.items() if split not in kept}
    if not texts:
        return notes, {}
    splits = list(texts)
    server_options = ServerOptions(tuple(args.corenlp_url), args.corenlp_memory, args.timeout)
    indices, places = find_distinct_sentences(list(texts.values()))
    digest = extraction_fingerprint(splits, [digests[split] for split in splits], options)
    folder = shard_folder(splits, digest)
    report_other_shards(folder)
    pool = process_pool if args.extractor == "stanza" else ThreadPoolExecutor
    # Close the extractors before the pool, so that the threads of an interrupted run do not finish their shards.
    with open_workers(args, list({split.data_dir for split in splits}), pool, close_extractors) as workers:
        extracted = extract_distinct_sentences(
            splits, places, digest, options, server_options, args.max_failed, workers.executor
        )
    rows = {split: (extracted[index] for index in indices[i]) for i, split in enumerate(splits)}
    statistics = write_streams(texts, rows, asdict(options), digests, dumps)
    remove_shards(folder)
    return notes, statistics


def has_same_stream(split: Split, options: Mapping[str, object], digest: Mapping[str, str]) -> bool:
    """Whether a split has its stream, undamaged, made from the same data with the same options.

    Args:
        digest: the fingerprint of the split
    """
    metadata = verified_metadata(split.stream_prefix(Relations.name))
    made = metadata.get("options"), metadata.get("fingerprint")
    return made == (json.loads(json.dumps(options)), digest)


def report_other_shards(folder: Path) -> None:
    """Print the shard folders of other interrupted runs in the same data directory."""
    for other in sorted(folder.parent.glob(f"{folder.stem}.*")):
        if other != folder:
            print(
                f"{other}: shards of an interrupted run with other data or options; remove the folder if you do not "
                f"want to continue that run"
            )


def write_streams(
    texts: Dict[Split, SourceText],
    rows: Mapping[Split, Iterable[Tuples]],
    options: Dict[str, object],
    digests: Dict[Split, Dict[str, str]],
    dumps: Dict[Path, Path],
) -> Dict[Split, RelationStatistics]:
    """Write the streams of all splits and the dumps. If a dump fails, no stream is written.

    Args:
        rows: the tuples of each sentence of each text
        options: how the tuples were extracted, for the JSON file of the stream
        digests: the fingerprint of each split
        dumps: for each data directory, the file for readable tuples
    """
    statistics = {split: RelationStatistics() for split in texts}
    with ExitStack() as stack:
        streams: Dict[Path, Metadata] = {
            split.stream_prefix(Relations.name): {"options": options, "fingerprint": digests[split]} for split in texts
        }
        writers = stack.enter_context(write_side_streams(streams, np.int32))
        dump_files: Dict[Path, TextIO] = {  # complete before the streams are
            folder: stack.enter_context(open_dump(path)) for folder, path in dumps.items()
        }
        for split, text in texts.items():
            writer = writers[split.stream_prefix(Relations.name)]
            # The rows come first in zip, so that read_tuples notices an extra line.
            progress = tqdm(zip(rows[split], text), total=len(text), desc=f"writing {split.name}", unit=" sentences")
            for tuples, sentence in progress:
                writer.add(pack_tuples([sentence.token_positions(entry.words) for entry in tuples or []]))
                statistics[split].add(sentence.words, tuples)
                if split.data_dir in dump_files:
                    dump_files[split.data_dir].write(json_line(split.name, sentence.words, tuples))
    return statistics


def report(statistics: Dict[Split, RelationStatistics]) -> None:
    """Print the number of sentences, words and tuples of each split."""
    columns = ("sentences", "tuples each", "with a tuple", "words", "in a tuple", "not parsed")
    print(f"{'':<40} " + " ".join(f"{column:>12}" for column in columns))
    for split, found in statistics.items():
        sentences, words = max(found.sentences, 1), max(found.words, 1)
        print(
            f"{split.stream_prefix(Relations.name)!s:<40} {found.sentences:>12,} {found.tuples / sentences:>12.2f} "
            f"{found.with_tuple / sentences:>12.1%} {found.words:>12,} {found.related / words:>12.1%} "
            f"{found.not_parsed:>12,}"
        )
    if any(found.not_parsed for found in statistics.values()):
        print(
            "not parsed: the parser failed, took too long, or changed the words, or an unknown subword splits a word "
            "of --relations; these sentences have no tuples"
        )
    too_long = sum(found.too_long for found in statistics.values())
    if too_long:
        print(f"of these, with more than {MAX_WORDS:,} words and never sent to the parser: {too_long:,}")
