"""Add the gate labels of Li et al. (2020, equations 6 and 7) to a binarized data directory.

    ctxgates gate-labels data-bin/X --source-lang de --target-lang en

The command counts which words occur together in the training data. It labels each target token of each split with the
context, source or target, that has the higher pointwise mutual information (PMI) with the token, and writes
``train.gate.de-en.{bin,idx,json}`` and so on. A test set without a target gets no labels. The PMI tables are
written to the same directory, as ``pmi.bilingual.de-en.npz`` and ``pmi.monolingual.de-en.npz``. The input is the
binarized data, not the text. ``python preprocess/gate_labels.py`` is the same command.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from fairseq_ctxgates.command_line import CommandParser, find_data, make_data_parser, positive
from fairseq_ctxgates.commands.workers import add_worker_options, open_workers
from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET, GateLabels
from fairseq_ctxgates.context_gates.pmi.counting import DEFAULT_MEMORY, TABLE_NAMES, count_tables, table_paths
from fairseq_ctxgates.context_gates.pmi.labelling import SectionsOfLabels, label_split
from fairseq_ctxgates.context_gates.pmi.sentences import check_split, count_types, map_ids
from fairseq_ctxgates.context_gates.pmi.table import COUNTS, MEASURES, STRATEGIES, PMIOptions, PMITable, TableMetadata
from fairseq_ctxgates.data.data_directory import EOS, Split, fingerprint
from fairseq_ctxgates.data.side_stream_files import lock_streams, write_side_streams
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.files import atomic_write_group, clean_up_on_failure, scratch_folder

REPORTED_PAIRS = 10  # the pairs with the highest PMI are printed
REPORTED_MIN_COUNT = 10  # PMI of rare pairs is high by chance


def memory_size(text: str) -> int:
    """The type of an option whose value is a number of bytes, with the unit K, M, G or T (powers of 1024) or without a
    unit; at least a kilobyte."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ") if match is not None else 0
    if not 1024 <= size < sys.maxsize:
        raise argparse.ArgumentTypeError(f"{text!r} is not a memory size such as 4G or 512M")
    return int(size)


def get_parser() -> CommandParser:
    """The command's options."""
    parser = make_data_parser(
        "Add gate labels to a data directory that fairseq-preprocess wrote: for each target token, whether "
        "its pointwise mutual information (PMI) is higher with the source words or with the preceding target words.",
        several_directories="one PMI table is counted on all of them, and each gets its own labels",
    )
    parser.add_argument(
        "--train-subset",
        default="train",
        metavar="SPLIT",
        help="count words on this split and on its continuations train1, train2, ...",
    )
    parser.add_argument(
        "--counts",
        choices=COUNTS,
        default="marginal",
        help="count of a single word: the marginal of the table of pairs, or its token frequency in the training data",
    )
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="max",
        help="a word's PMI with a context: maximum or mean over the context words",
    )
    parser.add_argument(
        "--measure", choices=MEASURES, default="pmi", help="PMI, or PMI normalized to [-1, 1] (Bouma 2009)"
    )
    parser.add_argument(
        "--min-count",
        type=positive,
        default=1,
        metavar="N",
        help="treat pairs that occur in fewer than N sentences as unseen",
    )
    add_worker_options(parser)
    parser.add_argument(
        "--memory",
        type=memory_size,
        default=f"{DEFAULT_MEMORY >> 30}G",
        metavar="SIZE",
        help="memory for the data of all processes together, including those of a Dask cluster; each process needs "
        "about 0.4G more for code",
    )
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    """Run the command.

    Raises:
        UserError: the data cannot be read or are inconsistent, or the results cannot be written
    """
    args = get_parser().parse_args(argv)
    with clean_up_on_failure():
        splits, tables, label_counts = label(args)
    report(tables, splits[0], label_counts)
    for split in splits:
        if split not in label_counts:
            print(f"{split.data_dir}/{split.name}: no target, no stream written")


def label(
    args: argparse.Namespace,
) -> Tuple[List[Split], Tuple[PMITable, PMITable], Dict[Split, np.ndarray]]:
    """Count the tables, and label all splits that have a target.

    Returns:
        all splits; the two tables; for each labelled split the numbers of its labels, see :func:`write_labels`
    """
    data_dirs, found = find_data(args)
    training = training_splits(found, args.train_subset, data_dirs)
    for split in training:
        if not split.has_target():
            raise UserError(
                f"{split.data_dir}/{split.name} has no target (was it binarized with --only-source?), but labels are "
                f"counted on both languages"
            )
    splits = [split for split in found if split in training or split.has_target()]
    check_dictionaries(splits)
    for split in splits:
        check_split(split)
    options = PMIOptions(args.counts, args.strategy, args.measure, args.min_count)
    languages = splits[0].source_lang, splits[0].target_lang
    with ExitStack() as stack:
        stack.enter_context(lock_streams(GateLabels.name, splits, "ctxgates gate-labels"))
        workers = stack.enter_context(open_workers(args, data_dirs))
        # The tables are put in place after the labels that are made from them.
        places = stack.enter_context(atomic_write_group(table_paths(data_dirs[0], *languages)))
        folder = stack.enter_context(scratch_folder(data_dirs[0], "pmi"))
        resources = {"memory": args.memory, "workers": workers.num_workers, "executor": workers.executor}
        tables = count_tables(training, folder, options, **resources)
        labels = ((split, label_split(split, folder, **resources)) for split in splits)
        label_counts = write_labels(splits, labels, tables[0].metadata)
        for path, place in zip(table_paths(folder, *languages), places):
            path.replace(place)
        for data_dir in data_dirs[1:]:  # what an earlier run on this directory alone made its labels from
            for path in table_paths(data_dir, *languages):
                path.unlink(missing_ok=True)
    return found, tables, label_counts


def training_splits(splits: List[Split], name: str, data_dirs: List[Path]) -> List[Split]:
    """The splits to count on: ``train``, ``train1``, ... of each directory, up to the first that is missing, as in
    fairseq-train."""
    training = []
    for data_dir in data_dirs:
        found = {split.name: split for split in splits if split.data_dir == data_dir}
        if name not in found:
            raise UserError(f"{data_dir} has no split {name!r} to count on: see --train-subset")
        continuations = (f"{name}{index}" for index in itertools.count(1))
        training += [found[each] for each in (name, *itertools.takewhile(found.__contains__, continuations))]
    return training


def check_dictionaries(splits: List[Split]) -> None:
    """Raise UserError unless all data directories have the same dictionaries."""
    for split in splits:
        for lang in (split.source_lang, split.target_lang):
            first, own = splits[0].dictionary_path(lang), split.dictionary_path(lang)
            if first != own and first.read_bytes() != own.read_bytes():
                raise UserError(f"{own} differs from {first}: binarize all data with the same dictionaries (--srcdict)")


def write_labels(
    splits: Sequence[Split], labelled: Iterable[Tuple[Split, SectionsOfLabels]], table_metadata: TableMetadata
) -> Dict[Split, np.ndarray]:
    """Write the labels of all splits to their data directories, or no labels at all.

    Args:
        labelled: each split and the labels of its target tokens, from :func:`label_split`
        table_metadata: how and on what the tables were counted

    Returns:
        for each split, the number of words with the labels TARGET, SOURCE and IGNORE, without end of sentence; (3,)
    """
    streams = {
        split.stream_prefix(GateLabels.name): {
            **table_metadata,
            "fingerprint": fingerprint(split, GateLabels.languages),
        }
        for split in splits
    }
    counts = {}
    with write_side_streams(streams, np.uint8) as writers:
        for split, labels in labelled:
            writer, counts[split] = writers[split.stream_prefix(GateLabels.name)], np.zeros(3, np.int64)
            with closing(labels):  # if writing fails, the rest is not labelled
                for some, sizes in labels:
                    writer.add_all(some, sizes)
                    counts[split] += count_types(some, 3)
                    del some  # frees the memory before the next ones are made
            ids, types = map_ids(split.text_prefix(split.target_lang)), len(split.load_dictionary(split.target_lang))
            counts[split][IGNORE] -= count_types(ids, types)[EOS]
    return counts


def report(tables: Tuple[PMITable, PMITable], training: Split, label_counts: Dict[Split, np.ndarray]) -> None:
    """Print the size of the tables, their pairs with the highest PMI, and the share of each label in each split."""
    source, target = (training.load_dictionary(lang) for lang in (training.source_lang, training.target_lang))
    for name, table, contexts in zip(TABLE_NAMES, tables, (source, target)):
        print(f"\n{name} table: {len(table):,} distinct pairs, {table.total:,} counted")
        print(f"highest {table.options.measure.upper()} of the pairs in {REPORTED_MIN_COUNT} sentences or more:")
        relation = "~" if table is tables[0] else "after"
        for word, context, value, count in table.strongest(REPORTED_PAIRS, REPORTED_MIN_COUNT):
            print(f"  {value:6.2f} {count:8,} x  {target[word]} {relation} {contexts[context]}")
    print(f"\n{'share of the labels':<40} {'words':>12} {'source':>8} {'target':>8} {'none':>8}")
    for split, counts in label_counts.items():
        shares = counts / max(counts.sum(), 1)
        name = str(split.stream_prefix(GateLabels.name))
        print(f"{name:<40} {counts.sum():>12,} {shares[SOURCE]:>8.1%} {shares[TARGET]:>8.1%} {shares[IGNORE]:>8.1%}")
