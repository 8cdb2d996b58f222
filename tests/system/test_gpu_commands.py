"""Training and translation by fairseq's commands on a GPU, with all mechanisms at once, in each precision. Without a
GPU only what needs none runs; ``benchmarks/gpu.sh`` runs all of it where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, Sequence

import pytest
import torch

from fairseq_ctxgates import analysis
from fairseq_ctxgates.commands.preceding_sentences import main as preceding_sentences
from fairseq_ctxgates.relations.mask import pack_tuples
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
    train,
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


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Transformer with all mechanisms."""
    folder = tmp_path_factory.mktemp("analysed")
    train(data, folder, *SYSTEMS["transformer"], "--max-epoch", 1)
    return folder / "checkpoint_last.pt"


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


@needs_gpu
@pytest.mark.parametrize("what", ["attention-entropy", "cxmi", "gates", "relations"])
def test_an_analysis(data: Path, checkpoint: Path, tmp_path: Path, what: str) -> None:
    """It finds on the GPU what it finds on the CPU."""
    found = []
    for device in ([], ["--cpu"]):
        report = tmp_path / "report.json"
        model = ["--path", str(checkpoint), "--gen-subset", "valid"]
        analysis.main([what, str(data), *model, "--json", str(report), *device])
        found.append(list(leaves(json.loads(report.read_text()))))
    assert len(found[0]) > 3
    for on_gpu, on_cpu in zip(*found):
        assert on_gpu == (pytest.approx(on_cpu, abs=1e-4) if isinstance(on_cpu, float) else on_cpu)
    assert len(found[0]) == len(found[1])


def leaves(content: Any) -> Iterator[Any]:
    """The numbers and strings of what was read from a JSON file."""
    if isinstance(content, (dict, list)):
        for part in content.values() if isinstance(content, dict) else content:
            yield from leaves(part)
    else:
        yield content
