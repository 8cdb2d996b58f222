"""Training and translation by fairseq's commands on a GPU, with all mechanisms at once, in each precision. Without a
GPU only what needs none runs; ``benchmarks/gpu.sh`` runs all of it where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import pytest
import torch

from fairseq_ctxgates.commands.preceding_sentences import main as preceding_sentences
from fairseq_ctxgates.relations.stream import pack_tuples
from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import (
    DECODING,
    GATED,
    TASK,
    TRAINING,
    check_same_translations,
    generate,
    hypotheses,
    logged,
    make_pairs,
    run,
    train_losses,
    validate,
    write_gate_labels,
    write_relations,
)

pytestmark = pytest.mark.usefixtures("without_tf32")

SENTENCES = {"train": 48, "valid": 10, "test": 20}
SMOOTHING = ("--smoothing", "ccwm", "--smoothing-side", "both", "--smoothing-words", "all")
PRECEDING = ("--load-preceding-sentences", "--inter-sentence-gate")
SYSTEMS = {
    "transformer": (*GATED, *SMOOTHING, *PRECEDING, "--load-relations", "--relation-fusion", "concat-gate"),
    "rnnsearch": ("--arch", "ctxgate_rnnsearch_tiny", *GATED[2:], *SMOOTHING, *PRECEDING),
}
# fairseq-train takes --bf16 to mean a TPU.
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
PRECISIONS = [
    (),
    *(pytest.param((option,), marks=needs_gpu) for option in ("--fp16", "--amp", "--memory-efficient-fp16")),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with all streams, in documents of four sentences."""
    folder = tmp_path_factory.mktemp("gpu")
    pairs = {split: make_pairs(number, seed=number) for split, number in SENTENCES.items()}
    data = binarize(folder / "data", pairs, "de", "en")
    write_gate_labels(data)
    for split, of_split in pairs.items():
        write_relations(data, split, [pack_tuples([[0, len(source.split()) - 1]]) for source, _ in of_split])
        (folder / f"{split}.docids").write_text("".join(f"{row // 4}\n" for row in range(len(of_split))))
    documents = [f"{split}={folder / split}.docids" for split in SENTENCES]
    preceding_sentences([str(data), "-s", "de", "-t", "en", "--documents", *documents])
    return data


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda options: "".join(options) or "float32")
@pytest.mark.parametrize("system", SYSTEMS)
def test_training_and_translation(data: Path, tmp_path: Path, system: str, precision: Sequence[str]) -> None:
    """The loss falls; what is measured and translated on the GPU is what the CPU makes of the same checkpoint."""
    on_gpu = [option for option in TRAINING if option != "--cpu"]
    log = run("train", data, *TASK, *on_gpu, *SYSTEMS[system], *precision, "--max-epoch", 3, "--save-dir", tmp_path)
    losses = train_losses(log)
    assert losses[-1] < losses[0]
    assert float(logged(log)[-1]["gate_loss"]) > 0
    checkpoint = tmp_path / "checkpoint_last.pt"
    expected = float(validate(data, checkpoint)["valid_loss"])
    assert float(logged(log, "valid")[-1]["valid_loss"]) == pytest.approx(expected, rel=0.03 if precision else 2e-4)
    search = [option for option in DECODING if option != "--cpu"]
    half = ["--fp16"] if any("fp16" in option for option in precision) else []
    found = hypotheses(run("generate", data, *TASK, "--path", checkpoint, *search, *half))
    assert found.keys() == set(range(SENTENCES["test"]))
    if not half:
        check_same_translations(found, generate(data, checkpoint))
