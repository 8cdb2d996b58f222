"""Training in two processes that fairseq-train itself starts, as it does on a machine with two GPUs, with its default
``--ddp-backend``.

Without GPUs fairseq starts none. What users can do there, start each process themselves and choose ``legacy_ddp``, is
tested in test_context_gate_commands.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from fairseq_ctxgates.relations.mask import pack_tuples
from tests.helpers.documents import ISG, ISG_RNNSEARCH, TEXT
from tests.helpers.fairseq_commands import (
    GATED,
    SMOOTHED,
    TASK,
    TRAINING,
    check_same_parameters,
    logged,
    parameters,
    train,
    write_relations,
)
from tests.helpers.pages import ROOT

TWO_GPUS = ROOT / "tests" / "helpers" / "two_gpus.py"  # importing it would change this process

# By gradient descent, because Adam makes a step of full length of a gradient that is 0 but for rounding.
DESCENT = ("--optimizer", "sgd", "--lr", "0.1", "--clip-norm", 0, "--dropout", 0)
BATCHES = ("--batch-size", 22, "--required-batch-size-multiple", 1, "--no-epoch-checkpoints")
ONE_PROCESS = ("--update-freq", 2)
TWO_PROCESSES = ("--distributed-world-size", 2, "--distributed-backend", "gloo")

RELATIONS = ("--load-relations", "--relation-fusion", "concat-gate")
PRECEDING = ("--load-preceding-sentences", "--inter-sentence-gate")
SMOOTHING = ("--smoothing", "ccwm", "--smoothing-side", "both")  # of unknown words, of which the corpus has none
GATED_RNNSEARCH = ("--arch", "ctxgate_rnnsearch_tiny", *GATED[2:])
MODELS: Dict[str, Tuple[Any, ...]] = {
    "context gates": GATED,
    "inter-sentence gate": ISG,
    "relations": ("--arch", "fra_transformer_tiny", "--load-relations", *SMOOTHED),
    "smoothing": ("--arch", "car_transformer_tiny", *SMOOTHED),
    "all": (*GATED, *PRECEDING, *RELATIONS, *SMOOTHING),
    "context gates of rnnsearch": GATED_RNNSEARCH,
    "inter-sentence gate of rnnsearch": ISG_RNNSEARCH,
    "smoothing of rnnsearch": ("--arch", "car_rnnsearch_tiny", *SMOOTHED),
    "all of rnnsearch": (*GATED_RNNSEARCH, *PRECEDING, *SMOOTHING),
}


@pytest.fixture(scope="module")
def data(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents with every stream, but for the labels of valid, which nobody needs."""
    folder = Path(shutil.copytree(documents, tmp_path_factory.mktemp("distributed") / "data"))
    for split, split_documents in TEXT.items():
        lengths = [len(source.split()) for document in split_documents for source, _ in document]
        write_relations(folder, split, [pack_tuples([[0, length - 1]] if length > 1 else []) for length in lengths])
    for path in folder.glob("valid.gate.*"):
        path.unlink()
    return folder


def fairseq_starts_two_processes(commands: List[List[str]], folder: Path) -> str:
    """Run fairseq-train, which starts two processes for the first of these trainings; they do the others after it."""
    done = subprocess.run(
        [sys.executable, str(TWO_GPUS), json.dumps(commands)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_two_processes_train_as_one(data: Path, tmp_path: Path) -> None:
    """An epoch with two batches in each update: in one process one after the other, in two processes a batch each. The
    batches are not of one size, and there is none for the second process in the last update. A model with all
    mechanisms then goes on for another epoch."""
    commands: List[List[str]] = []
    for name, options in MODELS.items():
        epochs = 2 if name.startswith("all") else 1
        common = (*options, *DESCENT, *BATCHES)
        log = train(data, tmp_path / "one" / name, *common, *ONE_PROCESS, "--max-epoch", epochs)
        assert float(logged(log)[-1]["bsz"]) <= 22
        for epoch in range(1, epochs + 1):
            command = (data, *TASK, *TRAINING, *common, *TWO_PROCESSES, "--save-dir", tmp_path / "two" / name)
            commands.append([*map(str, command), "--max-epoch", str(epoch)])

    output = fairseq_starts_two_processes(commands, tmp_path)

    assert output.count("done training") == len(commands)
    for name in MODELS:
        found, expected = (parameters(tmp_path / folder / name / "checkpoint_last.pt") for folder in ("two", "one"))
        check_same_parameters(found, expected, 1e-5)
