"""How fast relations are extracted, compared with CoreNLP's own command-line program.

    python -m benchmarks.extraction_speed train.en.gz [--sentences 8000] [--workers 2] [--json extraction_speed.json]

The first distinct sentences of a tokenized English text are processed in turns by

* ours: ``preprocess/relations.py``, from the binarized data to the stream, including the start of its server;
* CoreNLP's command line (``edu.stanford.nlp.pipeline.StanfordCoreNLP``) with the same annotators and properties on the
  same sentences: once as one file whose sentences are divided among the threads (``-nthreads``), once as one file for
  each thread (``-threads``). The output is protobuf, like a server's answer.

The wall-clock time is that of the whole process, including the loading of the models; both programs use several
processors.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import stanza
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder
from stanza.server.client import resolve_classpath

from fairseq_ctxgates.relations.extraction.corenlp import request_properties

ROOT = Path(__file__).resolve().parent.parent


def read_distinct(path: Path, count: int) -> List[str]:
    """The first distinct lines of a text."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as stream:
        distinct = dict.fromkeys(" ".join(line.split()) for line in stream)
    return list(islice(filter(None, distinct), count))


def binarize(folder: Path, sentences: List[str]) -> Path:
    """A data directory with the sentences as the text of both languages."""
    folder.mkdir()
    dictionary = Dictionary()
    for sentence in sentences:
        for word in sentence.split():
            dictionary.add_symbol(word)
    for lang in ("en", "xx"):
        dictionary.save(str(folder / f"dict.{lang}.txt"))
        builder = make_builder(str(folder / f"train.en-xx.{lang}.bin"), impl="mmap", vocab_size=len(dictionary))
        for sentence in sentences:
            builder.add_item(dictionary.encode_line(sentence, add_if_not_exist=False))
        builder.finalize(str(folder / f"train.en-xx.{lang}.idx"))
    return folder


class Taken(NamedTuple):
    """The time that a command took: wall-clock seconds, and the processor seconds of all processors."""

    seconds: float
    processor_seconds: float


def time_of(command: List[str]) -> Taken:
    """The time that a command takes. If it fails, print its output and exit."""
    clock, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    clock, after = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout.decode()[-3000:]}")
    return Taken(clock, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def our_command(data: Path, args: argparse.Namespace) -> List[str]:
    """The command of our extraction."""
    command = [sys.executable, str(ROOT / "preprocess" / "relations.py"), str(data), "-s", "en", "-t", "xx"]
    return [*command, "--workers", str(args.workers), "--corenlp-memory", args.memory]


def their_command(folder: Path, args: argparse.Namespace) -> List[str]:
    """The command of CoreNLP's program, without the files to read."""
    properties = request_properties("corenlp-openie", "en")
    properties.pop("pipelineLanguage")  # the default is English
    options = [word for name, value in properties.items() for word in (f"-{name}", value)]
    program = ["java", f"-Xmx{args.memory}", "-cp", resolve_classpath(), "edu.stanford.nlp.pipeline.StanfordCoreNLP"]
    return [*program, *options, "-outputFormat", "serialized", "-outputDirectory", str(folder)]


def measure(args: argparse.Namespace, sentences: List[str], folder: Path) -> Dict[str, List[Taken]]:
    """The time of each program in each turn."""
    parts = [folder / f"part{index}.txt" for index in range(args.workers)]
    for index, part in enumerate(parts):
        part.write_text("".join(f"{sentence}\n" for sentence in sentences[index :: args.workers]), encoding="utf-8")
    whole, parts_list = folder / "whole.txt", folder / "list.txt"
    whole.write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
    parts_list.write_text("".join(f"{part}\n" for part in parts))
    theirs, workers = their_command(folder, args), str(args.workers)
    taken: Dict[str, List[Taken]] = defaultdict(list)
    for turn in range(args.repeats):
        data = binarize(folder / f"data{turn}", sentences)  # where the stream is already there, nothing is parsed
        commands = {
            "ours": our_command(data, args),
            "CoreNLP, one file": [*theirs, "-file", str(whole), "-nthreads", workers],
            "CoreNLP, a file a thread": [*theirs, "-fileList", str(parts_list), "-threads", workers],
        }
        for name, command in commands.items():
            taken[name].append(time_of(command))
            rate = len(sentences) / taken[name][-1].seconds
            print(f"turn {turn + 1}, {name}: {rate:.1f} sentences/s", flush=True)
    return taken


def get_parser() -> argparse.ArgumentParser:
    """The benchmark's options."""
    parser = argparse.ArgumentParser(
        description="Measure the speed of extracting relations.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("text", type=Path, help="tokenized English, one sentence per line; may be compressed with gzip")
    parser.add_argument("--sentences", type=int, default=8000, help="distinct sentences from the beginning of the text")
    parser.add_argument("--workers", type=int, default=2, help="number of parallel requests, and of threads")
    parser.add_argument("--memory", default="4G", help="memory of the Java machine")
    parser.add_argument("--repeats", type=int, default=3, help="number of turns, of which the median counts")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser


def main() -> None:
    """Measure, print a table, write JSON."""
    args = get_parser().parse_args()
    sentences = read_distinct(args.text, args.sentences)
    with tempfile.TemporaryDirectory() as folder:
        taken = measure(args, sentences, Path(folder))
    medians = {name: Taken(*map(statistics.median, zip(*turns))) for name, turns in taken.items()}
    rates = {name: len(sentences) / median.seconds for name, median in medians.items()}
    print(f"\n{'':<26} {'seconds':>9} {'of processors':>14} {'sentences/s':>12}")
    for name, median in medians.items():
        print(f"{name:<26} {median.seconds:>9.1f} {median.processor_seconds:>14.1f} {rates[name]:>12.1f}")
    ratio = rates["ours"] / max(rate for name, rate in rates.items() if name != "ours")
    print(f"ours / the faster of CoreNLP's: {ratio:.2f}")
    if args.json:
        versions: Dict[str, Any] = {"python": platform.python_version(), "stanza": stanza.__version__}
        versions["java"] = subprocess.run(["java", "-version"], stderr=subprocess.PIPE).stderr.decode().splitlines()[0]
        content = {
            "options": vars(args),
            "versions": versions,
            "taken": {name: [turn._asdict() for turn in turns] for name, turns in taken.items()},
            "rates": rates,
            "ratio": ratio,
        }
        args.json.write_text(json.dumps({**content, "sentences": len(sentences)}, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
