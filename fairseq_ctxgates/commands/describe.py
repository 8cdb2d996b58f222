"""``ctxgates describe``: what was added to a data directory, how it was made, and whether it still fits the data.

    ctxgates describe data-bin/X
    ctxgates describe data-bin/X --json

It goes through every side stream and every PMI table of all language pairs, checks each of them as training does, and
shows its options, the version of this package that made it, and its date.
"""

from __future__ import annotations

import argparse
import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

from fairseq import utils

from fairseq_ctxgates.command_line import CommandParser, language_pair, make_data_parser
from fairseq_ctxgates.data.data_directory import Split, find_language_pairs, find_splits, fingerprint
from fairseq_ctxgates.data.side_stream import SideStream
from fairseq_ctxgates.data.side_stream_files import load_metadata
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanisms import all_streams
from fairseq_ctxgates.user_dir import register_models
from fairseq_ctxgates.version import __version__

STREAM_FILE = re.compile(r"(?P<split>[^.]+)\.(?P<name>[^.]+)\.(?P<pair>[^.]+-[^.]+)\.(?P<end>json|idx|bin)")
TABLE_FILE = re.compile(r"pmi\.(?P<name>bilingual|monolingual)\.(?P<pair>[^.]+-[^.]+)\.npz")


@dataclass(frozen=True)
class Entry:
    """A side stream of one split, or a PMI table.

    Attributes:
        kind: "stream" or "table"
        split: the split of a stream; None for a table
        size: the number of rows of a stream or of pairs of a table; None if it cannot be read
        options: how it was made
        version: the version of this package that made it; None for the earliest files
        date: the date of its last change, in UTC
        fingerprint: the fingerprint of the data that it was made for
        problem: why it cannot be used, or None
    """

    kind: str
    name: str
    file: str
    split: Optional[str]
    languages: str
    size: Optional[int]
    options: Mapping[str, Any]
    version: Optional[str]
    date: Optional[str]
    fingerprint: Any
    problem: Optional[str]


def get_parser() -> CommandParser:
    """The command's options."""
    parser = make_data_parser(
        "Show every side stream and PMI table of a data directory: its options, the version that made it, its date, "
        "and whether it still fits the data. The exit status is 1 if one does not.",
        several_directories="each is described, and it is checked that all have the same streams",
    )
    parser.add_argument(
        "--user-dir", metavar="DIR", help="folder of your own mechanisms, whose streams are checked as well"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, including all fingerprints")
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    """Run ``ctxgates describe``.

    Raises:
        UserError: a directory does not exist or has no data, a stream or a table does not fit, or the directories have
            different streams
    """
    args = get_parser().parse_args(argv)
    if args.user_dir is not None:
        register_models(args.user_dir)
    descriptions = [describe(Path(path), args) for path in utils.split_paths(args.data)]
    if args.json:
        print(json.dumps(descriptions, indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(map(as_text, descriptions)))
    unfit = [entry["file"] for description in descriptions for entry in description["entries"] if entry["problem"]]
    if unfit:
        raise UserError(f"{len(unfit)} of the files in {args.data} cannot be used: {', '.join(unfit)}")
    check_directories([Path(description["data"]) for description in descriptions], args)


def check_directories(data_dirs: Sequence[Path], args: argparse.Namespace) -> None:
    """Check the streams of several data directories as training does, which reads them one after the other.

    Raises:
        UserError: a stream of ``train`` is not in all directories, or was made in different ways
    """
    files = [file for data_dir in data_dirs for file in find_files(data_dir, given_pair(args, data_dir))]
    training_streams = [file for file in files if file.split == "train" and file.name in streams_by_name()]
    for name, pair in sorted({(file.name, file.pair) for file in training_streams}):
        streams_by_name()[name].check_directories([Split(data_dir, "train", *pair) for data_dir in data_dirs])


def describe(data_dir: Path, args: argparse.Namespace) -> Dict[str, Any]:
    """Everything about one data directory, as it is printed in JSON.

    Raises:
        UserError: the directory does not exist, or has no data of the language pair
    """
    given = given_pair(args, data_dir)
    files = find_files(data_dir, given)
    if files:
        splits = splits_of(files)
    else:
        pairs = find_language_pairs(data_dir) if given is None else [given]
        splits = [split for pair in pairs for split in find_splits(data_dir, *pair)]
    return {
        "data": str(data_dir),
        "version": __version__,
        "splits": [describe_split(split) for split in splits],
        "entries": [
            asdict(describe_table(data_dir, file) if file.split is None else describe_stream(data_dir, file))
            for file in files
        ],
    }


def given_pair(args: argparse.Namespace, data_dir: Path) -> Optional[Tuple[str, str]]:
    """The pair of languages that the options restrict the command to, if they name a language."""
    return language_pair(args, data_dir) if args.source_lang or args.target_lang else None


class NamedFile(NamedTuple):
    """A file whose name is that of a side stream's JSON file, or of a PMI table, which has no split."""

    path: Path
    name: str
    split: Optional[str]
    pair: Tuple[str, str]


def find_files(data_dir: Path, given: Optional[Tuple[str, str]] = None) -> List[NamedFile]:
    """All streams and tables of a data directory, or those of a given pair of languages, by languages, name and split.
    A stream without a JSON file, which is incomplete, is found by its other files.

    Raises:
        UserError: the directory does not exist, or has no data of any language pair
    """
    # With a hyphen in a language, only the data say where it ends.
    known = {
        "-".join(pair): pair for data_pair in find_language_pairs(data_dir) for pair in (data_pair[::-1], data_pair)
    }
    found = set()
    for path in data_dir.iterdir():
        stream, table = STREAM_FILE.fullmatch(path.name), TABLE_FILE.fullmatch(path.name)
        match = stream or table
        if match is None or (stream and stream["name"] not in streams_by_name() and stream["end"] != "json"):
            continue
        source, _, target = match["pair"].partition("-")
        pair = known.get(match["pair"], (source, target))
        if given in (None, pair):
            main_file = path.with_suffix(".json") if stream else path
            found.add(NamedFile(main_file, match["name"], stream["split"] if stream else None, pair))
    return sorted(found, key=lambda file: (file.pair, file.split is None, file.name, file.path))


def splits_of(files: Sequence[NamedFile]) -> List[Split]:
    """The splits of the languages of streams and tables; none for a pair of languages without text, of which its files
    say that they do not fit."""
    splits: List[Split] = []
    for data_dir, pair in sorted({(file.path.parent, file.pair) for file in files}):
        with suppress(UserError):
            splits += find_splits(data_dir, *pair)
    return splits


def describe_split(split: Split) -> Dict[str, Any]:
    """The sentences and fingerprints of a split's text, or why they cannot be read."""
    described: Dict[str, Any] = {"name": split.name, "languages": f"{split.source_lang}-{split.target_lang}"}
    try:
        described["sentences"] = len(split.load_language(split.source_lang))
        described["fingerprint"] = fingerprint(split)
    except UserError as error:
        described["problem"] = str(error)
    return described


def streams_by_name() -> Dict[str, Type[SideStream]]:
    """The side streams of all mechanisms; of two that read the same files, one."""
    return {stream.name: stream for stream in all_streams()}


def describe_stream(data_dir: Path, file: NamedFile) -> Entry:
    """Check a stream as training does, and describe it."""
    metadata: Mapping[str, Any] = {}
    problem = None
    try:
        metadata = load_metadata(file.path.with_suffix(""))
        if file.name in streams_by_name():
            streams_by_name()[file.name].load_split(Split(data_dir, str(file.split), *file.pair))
        else:
            problem = "no mechanism reads this stream: give the --user-dir of the one that does"
    except UserError as error:
        problem = str(error)
    return make_entry("stream", file, metadata, metadata.get("rows"), metadata.get("fingerprint"), problem)


def describe_table(data_dir: Path, file: NamedFile) -> Entry:
    """Check a PMI table as forced decoding does, and describe it."""
    # Imports Numba.
    from fairseq_ctxgates.context_gates.pmi.labelling import load_labeller
    from fairseq_ctxgates.context_gates.pmi.table import PMITable

    metadata: Mapping[str, Any] = {}
    pairs = problem = None
    try:
        table = PMITable.load(file.path, verify=False)
        metadata, pairs = dict(table.metadata), len(table)
        load_labeller(data_dir, *file.pair)
    except UserError as error:
        problem = str(error)
    provenance = {key: metadata.get(key) for key in ("dictionaries", "train")}
    return make_entry("table", file, metadata, pairs, provenance, problem)


def make_entry(
    kind: str, file: NamedFile, metadata: Mapping[str, Any], size: Optional[int], data: Any, problem: Optional[str]
) -> Entry:
    """The description of a file, given its metadata, its size and the fingerprints of the data it was made for."""
    options = dict(metadata["options"]) if isinstance(metadata.get("options"), dict) else {}
    if "made_from" in metadata:
        options["made_from"] = metadata["made_from"]
    changed = datetime.fromtimestamp(file.path.stat().st_mtime, timezone.utc) if file.path.exists() else None
    return Entry(
        kind=kind,
        name=file.name,
        file=file.path.name,
        split=file.split,
        languages="-".join(file.pair),
        size=size,
        options=options,
        version=metadata.get("version"),
        date=changed.isoformat(timespec="seconds") if changed else None,
        fingerprint=data,
        problem=problem,
    )


def as_text(description: Mapping[str, Any]) -> str:
    """A description for people: the splits, then each stream and table with its options below."""
    lines = [description["data"]]
    for split in description["splits"]:
        size = f"{split['sentences']:,} sentences" if "sentences" in split else split["problem"]
        lines.append(f"  {split['name']:<24} {split['languages']:<8} {size}")
    if not description["entries"]:
        lines.append("  no side streams and no tables")
    for entry in description["entries"]:
        size = f"{entry['size']:,}" if isinstance(entry["size"], int) else "?"
        unit = "rows" if entry["kind"] == "stream" else "pairs"
        made = f"{entry['date'] or 'no date'}, version {entry['version'] or 'unknown'}"
        lines.append(
            f"  {entry['file']:<32} {size:>12} {unit:<5}  {made}  {'DOES NOT FIT' if entry['problem'] else 'fits'}"
        )
        if entry["options"]:
            lines.append("    " + ", ".join(f"{name}: {value}" for name, value in sorted(entry["options"].items())))
        if entry["problem"]:
            lines.append(f"    {entry['problem']}")
    return "\n".join(lines)
