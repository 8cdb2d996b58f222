"""The folder in which the rows of the table are run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Dict, Sequence

import ctxgates
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import GATED, PLAIN, SMOOTHED, make_pairs, train

SIZES = {"train": 16, "valid": 8, "test": 8}
PAIRS = {split: make_pairs(size, seed) for seed, (split, size) in enumerate(SIZES.items())}
DOCUMENT = 4  # sentences
MODELS: Dict[str, Sequence[str]] = {
    "plain": PLAIN,
    "stock": (*PLAIN, "--task", "translation"),
    "concatenated": (*PLAIN, "--concatenate-preceding", "</s>"),
    "gated": GATED,
    "isg": ("--arch", "isg_transformer_tiny", *SMOOTHED),
    "fra": ("--arch", "fra_transformer_tiny", *SMOOTHED),
}


def make_folder(folder: Path) -> None:
    """Data with every stream in ``data``, the texts, documents' names and tuples that they were made from, and a model
    of each kind in ``models``."""
    data = binarize(folder / "data", PAIRS, "de", "en", joined=True)
    for split, pairs in PAIRS.items():
        for side, lang in enumerate(("de", "en")):
            (folder / f"{split}.{lang}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
        (folder / f"{split}.names").write_text("".join(f"{row // DOCUMENT}\n" for row in range(len(pairs))))
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(tuples(source))}\n" for source, _ in pairs))
    languages = [str(data), "-s", "de", "-t", "en"]
    ctxgates.main(["gate-labels", *languages])
    names = [f"{split}={folder / split}.names" for split in SIZES]
    ctxgates.main(["preceding-sentences", *languages, "--documents", *names])
    files = [f"{split}={folder / split}.jsonl" for split in SIZES]
    ctxgates.main(["relations", *languages, "--extractor", "jsonl", "--relations", *files])

    (folder / "models").mkdir()
    for name, options in MODELS.items():
        saving = ("--max-update", "1", "--no-epoch-checkpoints", "--no-save-optimizer-state", "--share-all-embeddings")
        train(data, folder / "training", *options, *saving)
        shutil.move(str(folder / "training" / "checkpoint_last.pt"), str(folder / "models" / f"{name}.pt"))
        shutil.rmtree(folder / "training")
    (folder / "saved").mkdir()


def tuples(sentence: str) -> Dict[str, object]:
    """A line of relations: all words of a sentence in one tuple."""
    words = sentence.split()
    return {"words": words, "tuples": [{"subject": list(range(len(words))), "relation": [], "object": []}]}
