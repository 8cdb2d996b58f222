"""Tiny models that several tests read, trained once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence

from tests.helpers.fairseq_commands import Hypothesis, generate, train


@dataclass(frozen=True)
class Trained:
    """Models trained on one data directory, and the log of each training. Tests must not change the files.
    ``trained["plain"]`` is the last checkpoint of the model "plain"."""

    data: Path
    folder: Path
    logs: Dict[str, str]

    def __getitem__(self, model: str) -> Path:
        return self.folder / model / "checkpoint_last.pt"

    def translations(self, model: str) -> Dict[int, Hypothesis]:
        """What fairseq-generate makes of the test split without further options. It is run once."""
        return _generate(self.data, self[model])

    def scores(self, model: str) -> Dict[int, Hypothesis]:
        """The scores that fairseq-generate gives the references of the test split. It is run once."""
        return _generate(self.data, self[model], "--score-reference")

    def ensemble(self, *models: str) -> str:
        """``--path`` of an ensemble of these models."""
        return ":".join(str(self[model]) for model in models)


@lru_cache(maxsize=None)
def _generate(data: Path, checkpoint: Path, *options: str) -> Dict[int, Hypothesis]:
    return generate(data, checkpoint, *options)


def train_models(data: Path, folder: Path, models: Mapping[str, Sequence[Any]], *common: Any) -> Trained:
    """Train each model with its options, in this order, in a folder of its own."""
    logs = {name: train(data, folder / name, *options, *common) for name, options in models.items()}
    return Trained(data, folder, logs)
