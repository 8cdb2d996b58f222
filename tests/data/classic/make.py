"""Makes the files beside it, on the classic stack (see README.md). From the repository's root:

PYTHONPATH=. .venv-classic/bin/python tests/data/classic/make.py
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict

from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import GATED, PLAIN, generate, make_pairs, train, write_gate_labels

FOLDER = Path(__file__).parent
SIZE = (
    *("--encoder-embed-dim", "24", "--encoder-ffn-embed-dim", "24", "--encoder-layers", "1", "--share-all-embeddings"),
    *("--decoder-embed-dim", "24", "--decoder-ffn-embed-dim", "24", "--decoder-layers", "2"),
)
# --eval-bleu puts NumPy numbers into the checkpoint.
SAVING = (
    *("--no-save-optimizer-state", "--no-epoch-checkpoints", "--max-epoch", "20", "--save-interval", "20"),
    *("--eval-bleu", "--eval-bleu-args", '{"beam": 1, "max_len_b": 12}', "--eval-bleu-detok", "space"),
)


def main() -> None:
    scores: Dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        pairs = {"train": make_pairs(48, 1), "valid": make_pairs(10, 2), "test": make_pairs(12, 3)}
        data = binarize(Path(scratch) / "data", pairs, "de", "en", joined=True)
        write_gate_labels(data)
        for name, options in (("rcg_transformer_tiny", GATED), ("transformer_tiny", PLAIN)):
            checkpoint = FOLDER / f"{name}.pt"
            train(data, Path(scratch) / name, *options, *SIZE, *SAVING)
            shutil.copy(Path(scratch) / name / "checkpoint_last.pt", checkpoint)
            scores[name] = {
                "translations": generate(data, checkpoint),
                "references": generate(data, checkpoint, "--score-reference"),
            }
        shutil.rmtree(FOLDER / "data-bin", ignore_errors=True)
        shutil.copytree(data, FOLDER / "data-bin", ignore=shutil.ignore_patterns("valid.*"))
    (FOLDER / "scores.json").write_text(json.dumps(scores, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
