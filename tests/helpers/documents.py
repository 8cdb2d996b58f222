"""Tiny documents, binarized with their preceding sentences, and the models trained on them. Shared by the tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Dict, List, Sequence

import ctxgates
from tests.helpers.corpus import Pair, binarize
from tests.helpers.fairseq_commands import PLAIN, SMOOTHED, WORDS, write_gate_labels
from tests.helpers.trained import Trained, train_models

# The inter-sentence gate (ISG), on both backbones.
ISG = ("--arch", "isg_transformer_tiny", "--load-preceding-sentences", *SMOOTHED)
ISG_RNNSEARCH = ("--arch", "isg_rnnsearch_tiny", "--load-preceding-sentences", *SMOOTHED)
COMMON = ("--share-all-embeddings", "--no-epoch-checkpoints")
# 20 lines of three documents, the last of them of one line.
DOCUMENTS = {"train": [6] * 8, "valid": [5, 5], "test": [7, 12, 1]}


def make_documents(lengths: Sequence[int], seed: int) -> List[List[Pair]]:
    """Documents of sentences of one to six words; each is translated word by word, and after the first word of the
    sentence before."""
    rng = random.Random(seed)
    documents = []
    for length in lengths:
        document: List[Pair] = []
        before = 0
        for _ in range(length):
            words = [rng.randrange(20) for _ in range(rng.randint(1, 6))]
            target = [WORDS["en"][before], *(WORDS["en"][word] for word in words)]
            document.append((" ".join(WORDS["de"][word] for word in words), " ".join(target)))
            before = words[0]
        documents.append(document)
    return documents


TEXT = {split: make_documents(lengths, seed) for seed, (split, lengths) in enumerate(DOCUMENTS.items())}
FIRST = (0, 7, 19)  # the test split's sentences that are the first of their document
# For an analysis, with a model that is too short for the test split's fourth sentence, of which seven are read.
SHORT = ("--model-overrides", "{'max_target_positions': 6}")


def write_preceding(data: Path, lengths: Dict[str, List[int]] = DOCUMENTS) -> None:
    """Add the stream of preceding sentences with the command, from a file of document names for each split."""
    files = []
    for split, documents in lengths.items():
        names = [f"document {number}\n" for number, length in enumerate(documents) for _ in range(length)]
        (data / f"{split}.docids").write_text("".join(names))
        files.append(f"{split}={data / split}.docids")
    ctxgates.main(["preceding-sentences", str(data), "-s", "de", "-t", "en", "--documents", *files])


def binarize_documents(folder: Path) -> Path:
    """A data directory of ``TEXT``, with preceding sentences and gate labels."""
    splits = {split: [pair for document in documents for pair in document] for split, documents in TEXT.items()}
    data = binarize(folder, splits, "de", "en", joined=True)
    write_preceding(data)
    write_gate_labels(data)
    return data


def interactive_lines() -> List[str]:
    """The test split's sources for fairseq-interactive: an empty line ends a document."""
    return [line for document in TEXT["test"] for line in (*(source for source, _ in document), "")]


def train_on_documents(data: Path, folder: Path) -> Trained:
    """Models that read the preceding sentence, each in another way, and models that do not: a Transformer with the gate
    (ISG) that starts from the plain one, an RNNSearch with the gate, a Transformer trained on concatenated sentences,
    and one of fairseq's own task."""
    models = {
        "plain": (*PLAIN, "--max-epoch", 2),
        "isg": (*ISG, "--warm-start", folder / "plain" / "checkpoint_last.pt", "--max-epoch", 6),
        "rnnsearch": (*ISG_RNNSEARCH, "--max-epoch", 2),
        "concatenated": (*PLAIN, "--concatenate-preceding", "</s>", "--max-epoch", 2),
        "stock": (*PLAIN, "--task", "translation", "--max-epoch", 2),
    }
    return train_models(data, folder, models, *COMMON)
