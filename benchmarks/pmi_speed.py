"""How fast the PMI tables are counted, beside a plain Python ``Counter`` and SciPy's sparse product.

    python benchmarks/pmi_speed.py [--sentences 1000000] [--json pmi_speed.json]

On a generated corpus (Zipf's law, so many tokens a sentence, so many types), each method in a process of its own:

* ours: both tables, from the binarized data to the stored tables, on the whole corpus and on its first half;
* ``Counter``: the pairs of the bilingual table of some sentences, from Python lists;
* SciPy: the pairs of the bilingual table as the product of two sparse sentence-by-type matrices; making the matrices
  does not count, and the pairs are not stored.

A pair is a word type and another in its context, in one sentence. Seconds are processor seconds, because other work on
the machine changes them less than those of the clock, which are in the JSON file too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import platform
import resource
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numba
import numpy as np
import scipy
from fairseq.data.indexed_dataset import MMapIndexedDataset
from scipy.sparse import csr_matrix

from fairseq_ctxgates.context_gates.pmi import EOS, PMIOptions, count_tables, map_split
from fairseq_ctxgates.data.data_directory import find_splits

SPECIAL_SYMBOLS = 4


def make_corpus(folder: Path, sentences: int, length: int, types: int, seed: int) -> Path:
    """Binarize a random corpus; a larger one of the same seed begins with the smaller one."""
    folder.mkdir()
    cumulative = np.cumsum(1 / np.arange(1, types + 1))
    for number, lang in enumerate(("de", "en")):
        generator = np.random.default_rng([seed, number])
        ranks = np.searchsorted(cumulative / cumulative[-1], generator.random((sentences, length)))
        ids = np.pad(ranks + SPECIAL_SYMBOLS, ((0, 0), (0, 1)), constant_values=EOS)
        dtype = np.uint16 if types < 65000 else np.int32
        ids.astype(dtype).tofile(folder / f"train.de-en.{lang}.bin")
        with MMapIndexedDataset.Index.writer(str(folder / f"train.de-en.{lang}.idx"), dtype) as index:
            index.write([length + 1] * sentences)
        (folder / f"dict.{lang}.txt").write_text("".join(f"w{rank} 1\n" for rank in range(types)))
    return folder


def load_ids(folder: Path, lang: str, sentences: int) -> np.ndarray:
    """(sentences, tokens) of the beginning of the corpus, without end of sentence."""
    text = map_split(find_splits(folder, "de", "en")[0])[lang == "en"]
    return text.ids.reshape(len(text.start) - 1, -1)[:sentences, :-1]


def timed(run: Callable[[], int]) -> Dict[str, float]:
    """What a function that returns a number of pairs took, and the most memory its process had until then."""
    clock, processor = time.perf_counter(), time.process_time()
    pairs = run()
    seconds, clock = time.process_time() - processor, time.perf_counter() - clock
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "pairs": pairs,
        "seconds": seconds,
        "clock_seconds": clock,
        "pairs_per_second": pairs / seconds,
        "peak_memory": peak,
    }


def measure_ours(folder: Path, memory: int, warm_up: Path) -> Dict[str, float]:
    """Both tables, counted and stored by one process; compiling is done before, on another corpus."""

    def run(data: Path) -> int:
        return sum(table.total for table in count_tables(find_splits(data, "de", "en"), data, PMIOptions(), memory))

    run(warm_up)
    return timed(lambda: run(folder))


def measure_counter(folder: Path, sentences: int) -> Dict[str, float]:
    """The bilingual table of the first sentences by Python's Counter."""
    source, target = (load_ids(folder, lang, sentences).tolist() for lang in ("de", "en"))

    def run() -> int:
        pairs: Counter = Counter()
        for x, y in zip(source, target):
            pairs.update(itertools.product(set(y), set(x)))
        return sum(pairs.values())

    return timed(run)


def measure_scipy(folder: Path, sentences: int, width: int) -> Dict[str, float]:
    """The bilingual table by a sparse product."""
    source, target = (incidence(load_ids(folder, lang, sentences), width) for lang in ("de", "en"))
    transposed = target.T.tocsr()
    return timed(lambda: int((transposed @ source).data.sum(dtype=np.int64)))


def incidence(ids: np.ndarray, width: int) -> csr_matrix:
    """(sentences, types): 1 where a sentence has a type."""
    ids = np.sort(ids.astype(np.int32), axis=1)
    first = np.diff(ids, axis=1, prepend=-1) > 0
    start = np.concatenate([[0], np.cumsum(first.sum(axis=1))])
    return csr_matrix((np.ones(start[-1], np.int32), ids[first], start), (len(ids), width))


def in_new_process(function: Callable, *arguments: Any) -> Any:
    """Call a function in a process of its own, so that its memory is its own. (This one must stay small: a process
    begins with the peak memory of the one that started it.)"""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(function, *arguments).result()


def measure(args: argparse.Namespace, folder: Path) -> Dict[str, Dict[str, float]]:
    """All methods, one after the other."""
    shape = (args.length, args.types, args.seed)
    print(f"generating {args.sentences:,} sentence pairs in {folder}", flush=True)
    corpora = {
        name: in_new_process(make_corpus, folder / name, sentences, *shape)
        for name, sentences in (("whole", args.sentences), ("half", args.sentences // 2), ("warm up", 100))
    }
    runs: List[Tuple[str, Callable, Tuple]] = [
        ("ours, half the corpus", measure_ours, (corpora["half"], args.memory, corpora["warm up"])),
        ("ours", measure_ours, (corpora["whole"], args.memory, corpora["warm up"])),
        ("Counter, bilingual", measure_counter, (corpora["whole"], args.counter_sentences)),
        ("SciPy, bilingual", measure_scipy, (corpora["whole"], args.sentences, args.types + SPECIAL_SYMBOLS)),
    ]
    results = {}
    for name, function, arguments in runs:
        print(f"measuring {name}", flush=True)
        results[name] = in_new_process(function, *arguments)
    return results


def get_parser() -> argparse.ArgumentParser:
    """The benchmark's options."""
    parser = argparse.ArgumentParser(
        description="Measure the speed of counting PMI tables.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=1_000_000, help="sentence pairs")
    parser.add_argument("--length", type=int, default=28, help="tokens a sentence")
    parser.add_argument("--types", type=int, default=32_000, help="types a language")
    parser.add_argument("--counter-sentences", type=int, default=30_000, help="sentence pairs for the Counter")
    parser.add_argument("--memory", type=int, default=4 << 30, help="bytes that counting may use")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser


def main() -> None:
    """Measure, print a table, write JSON."""
    args = get_parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(args, Path(folder))
    print(f"\n{'':<24} {'pairs':>14} {'seconds':>8} {'pairs/s':>14} {'memory':>9}")
    for name, result in results.items():
        print(
            f"{name:<24} {result['pairs']:>14,.0f} {result['seconds']:>8.2f} {result['pairs_per_second']:>14,.0f} "
            f"{result['peak_memory'] / 2**30:>5.2f} GiB"
        )
    ours, half = results["ours"], results["ours, half the corpus"]
    speed = ours["pairs_per_second"]
    ratios = {
        "ours / Counter": speed / results["Counter, bilingual"]["pairs_per_second"],
        "ours / SciPy": speed / results["SciPy, bilingual"]["pairs_per_second"],
        "seconds a pair, whole / half": half["pairs_per_second"] / speed,
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    versions = {"python": platform.python_version(), **{m.__name__: m.__version__ for m in (numba, np, scipy)}}
    if args.json:
        args.json.write_text(
            json.dumps(
                {"options": vars(args), "versions": versions, "results": results, "ratios": ratios},
                indent=2,
                default=str,
            )
        )


if __name__ == "__main__":
    main()
