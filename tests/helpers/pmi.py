"""Tables and labels to compare with: a corpus worked by hand, and the counts of random ones by brute force."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
from fairseq.data import Dictionary

from fairseq_ctxgates.context_gates.gate_labels import IGNORE, SOURCE, TARGET
from fairseq_ctxgates.context_gates.pmi.counting import count_tables
from fairseq_ctxgates.context_gates.pmi.table import PMIOptions, PMITable
from fairseq_ctxgates.data.data_directory import Split, find_splits
from tests.helpers.corpus import Pair

# Sentence   source   target     bilingual pairs         monolingual pairs (word, one before it)
#    1       a b      x y        x-a x-b y-a y-b         y-x
#    2       a c      x z        x-a x-c z-a z-c         z-x
#    3       a b      x y        x-a x-b y-a y-b         y-x
#    4       c c      z x z      z-c x-c                 x-z z-z z-x
#    5       b d      y          y-b y-d
# so that the tables, with their marginals, are
#         a  b  c  d                     x  z
#    x    3  2  2  .  | 7           x    .  1  | 1
#    y    2  3  .  1  | 6           y    2  .  | 2
#    z    1  .  2  .  | 3           z    2  1  | 3
#         6  5  4  1  | 16 = Z           4  2  | 6 = Z
PAIRS = [("a b", "x y"), ("a c", "x z"), ("a b", "x y"), ("c c", "z x z"), ("b d", "y")]
# The higher of the two, as equation 7 has it; the last label is that of end of sentence.
LABELS = [
    [SOURCE, SOURCE, IGNORE],  # x: 8/7 > nothing; y: max(8/9, 8/5) > 3/2
    [SOURCE, SOURCE, IGNORE],  # x: 8/7 > nothing; z: max(8/9, 8/3) > 1
    [SOURCE, SOURCE, IGNORE],
    [SOURCE, TARGET, SOURCE, IGNORE],  # z: 8/3 > nothing; x: 8/7 < 3; z: 8/3 > max(1, 1)
    [SOURCE, IGNORE],  # y: max(8/5, 8/3) > nothing
]


def count(folder: Path, **options: Any) -> Tuple[PMITable, PMITable]:
    """The two tables of a data directory, counted with options of ``PMIOptions``."""
    return count_tables(training_splits(folder), folder, PMIOptions(**options))


def training_splits(folder: Path) -> List[Split]:
    """The splits that tables are counted on."""
    return [split for split in find_splits(folder, "de", "en") if split.name.startswith("train")]


def dictionary(folder: Path, lang: str) -> Dictionary:
    """The dictionary of a language in a data directory."""
    return Dictionary.load(str(folder / f"dict.{lang}.txt"))


def encode(folder: Path, lang: str, words: str) -> np.ndarray:
    """The token ids of a sentence, with end of sentence."""
    return dictionary(folder, lang).encode_line(words, add_if_not_exist=False).numpy()


def random_pairs(number: int, seed: int, types: int = 30) -> List[Pair]:
    """Sentences of 0 to 12 words, low numbers being more frequent."""
    source = random.Random(seed)

    def sentence(letter: str) -> str:
        words = (int(types * source.random() ** 2) for _ in range(source.randrange(13)))
        return " ".join(f"{letter}{word}" for word in words)

    return [(sentence("s"), sentence("t")) for _ in range(number)]


class BruteForce:
    """Section 2.3 of the paper, word by word."""

    def __init__(self, pairs: Sequence[Pair], options: PMIOptions) -> None:
        self.options = options
        self.bilingual: Counter = Counter()
        self.monolingual: Counter = Counter()
        source_tokens: Counter = Counter()
        target_tokens: Counter = Counter()
        for source, target in ((source.split(), target.split()) for source, target in pairs):
            self.bilingual.update(itertools.product(set(target), set(source)))
            self.monolingual.update({(word, earlier) for i, word in enumerate(target) for earlier in target[:i]})
            source_tokens.update(source)
            target_tokens.update(target)
        self.frequencies = {id(self.bilingual): source_tokens, id(self.monolingual): target_tokens}
        self.target_tokens = target_tokens

    def pmi(self, table: Counter, word: str, context: str) -> float:
        pair, total = table[word, context], sum(table.values())
        if pair < max(self.options.min_count, 1):
            return -math.inf
        if self.options.counts == "frequency":
            row, column = self.target_tokens[word], self.frequencies[id(table)][context]
        else:
            row = sum(n for (mu, _), n in table.items() if mu == word)
            column = sum(n for (_, nu), n in table.items() if nu == context)
        value = math.log(total * pair / (row * column))
        return value / -math.log(pair / total) if self.options.measure == "npmi" else value

    def score(self, table: Counter, word: str, context: Sequence[str], known: Dict) -> float:
        values = []
        for other in context:
            key = (id(table), word, other)
            if key not in known:
                known[key] = self.pmi(table, word, other)
            values.append(known[key])
        seen = [value for value in values if value > -math.inf]
        if not seen:
            return -math.inf
        return sum(seen) / len(seen) if self.options.strategy == "mean" else max(seen)

    def labels(self, pairs: Sequence[Pair]) -> List[List[int]]:
        known: Dict = {}
        labels = []
        for source, target in ((source.split(), target.split()) for source, target in pairs):
            row = []
            for i, word in enumerate(target):
                from_source = self.score(self.bilingual, word, source, known)
                from_target = self.score(self.monolingual, word, target[:i], known)
                unseen = from_source == from_target == -math.inf
                row.append(IGNORE if unseen else SOURCE if from_source > from_target else TARGET)
            labels.append([*row, IGNORE])
        return labels
