"""A mechanism of the user's own, in a ``--user-dir`` outside the package: the commands of its README."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict

import pytest
import torch
from fairseq import checkpoint_utils

from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import make_pairs
from tests.helpers.pages import ROOT, run_block
from warm_python import WarmPython

EXAMPLE = ROOT / "examples" / "own_mechanism"
TINY = (
    "--cpu --num-workers 0 --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16 "
    "--decoder-ffn-embed-dim 16 --encoder-layers 1 --decoder-layers 2 --encoder-attention-heads 2 "
    "--decoder-attention-heads 2"
)
RECURRENT_TINY = "--cpu --num-workers 0 --encoder-embed-dim 16 --encoder-hidden-size 16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the README begins with: data, and a domain for each sentence, by its length."""
    folder = tmp_path_factory.mktemp("own")
    splits = {"train": make_pairs(120, 1), "valid": make_pairs(20, 2), "test": make_pairs(20, 3)}
    binarize(folder / "data-bin" / "X", splits, "de", "en")
    for split, pairs in splits.items():
        domains = [len(source.split()) > 4 for source, _ in pairs]
        (folder / f"{split}.domains").write_text("".join(f"{int(domain)}\n" for domain in domains))
    (folder / "test.de").write_text("".join(f"{source}\n" for source, _ in splits["test"]))
    copy = folder / "examples" / "own_mechanism"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def scores(output: str) -> Dict[str, float]:
    """The scores of the translations that a command printed, by sentence."""
    return {number: float(score) for number, score in re.findall(r"^H-(\d+)\t(\S+)\t", output, re.MULTILINE)}


@pytest.mark.slow
def test_its_readme(folder: Path, warm_python: WarmPython) -> None:
    smaller = {
        "--arch context_transformer ": f"--arch context_transformer {TINY} ",
        "--arch domain_transformer ": f"--arch domain_transformer {TINY} ",
        "--arch domain_rnnsearch ": f"--arch domain_rnnsearch {RECURRENT_TINY} ",
        "--max-epoch 10": "--max-epoch 2",
        "--lr 0.0005": "--lr 0.01",
        "fairseq-generate data-bin/X": "fairseq-generate data-bin/X --cpu --num-workers 0 --max-len-b 10",
        "fairseq-interactive data-bin/X": "fairseq-interactive data-bin/X --cpu --max-len-b 10",
    }
    output = run_block("own mechanism", smaller, folder, warm_python, EXAMPLE / "README.md")

    for split, times in (("train", 2), ("valid", 2), ("test", 3)):  # the baseline reads no stream
        assert len(re.findall(f"{split}: side streams domain", output)) == times
    assert re.search(r"warm start from .*: \d+ parameters taken over, 6 of the mechanisms' own are new \(0", output)
    translated, ablated, ensemble, interactive = map(scores, re.split("Generate test.*|Total time", output)[-5:-1])
    assert len(translated) == len(ablated) == len(ensemble) == len(interactive) == 20
    assert sum(translated[number] != ablated[number] for number in translated) > 5
    assert translated != ensemble
    # Lines are all of domain 1, as the longer half of the test set is.
    assert sum(abs(translated[number] - interactive[number]) < 1e-4 for number in translated) > 5

    parameters = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoints/rnnsearch/checkpoint_best.pt"))
    names = set(parameters["model"])
    assert {"decoder.cell.source_parts.domain.embedding.weight", "decoder.cell.connection.from_word.weight"} <= names


def test_it_is_one_file_that_edits_nothing() -> None:
    assert len((EXAMPLE / "domain_gate.py").read_text().splitlines()) <= 120
    assert sorted(path.name for path in EXAMPLE.glob("*.*")) == ["README.md", "__init__.py", "domain_gate.py"]


def test_its_gate_reads_half_precision_beside_single() -> None:
    """Under autocast the source context is in half precision, and the embedding of the domain is not."""
    spec = importlib.util.spec_from_file_location("domain_gate", EXAMPLE / "domain_gate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(1)
    gate = module.TransformerDomainGate(2, 4, 4)
    t, s, d = torch.randn(3, 5, 4).unbind()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = gate.mix(t.bfloat16(), s.bfloat16(), d)
    expected, _ = gate.mix(t, s, d)
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)


@pytest.mark.process
@pytest.mark.parametrize("first", ["models", "tasks"])
def test_a_mechanism_that_is_registered_too_late(first: str, warm_python: WarmPython) -> None:
    code = (
        f"import fairseq_ctxgates.{first}\n"
        "from fairseq_ctxgates.mechanism import Mechanism\n"
        "from fairseq_ctxgates.mechanisms import register_mechanism\n"
        "class Late(Mechanism): name = 'late'\n"
        "register_mechanism(Late)"
    )
    done = subprocess.run([warm_python.python, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Late is registered too late: call register_mechanism before fairseq_ctxgates.models" in done.stderr
