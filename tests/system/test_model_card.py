"""The lines of the model card load a model in Python, through fairseq's interface of torch.hub."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.helpers.corpus import binarize
from tests.helpers.fairseq_commands import GATED, generate, make_pairs, train, write_gate_labels
from tests.helpers.pages import ROOT

CARD = ROOT / "examples" / "model_card.md"


def test_the_card_loads_the_model_and_translates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    match = re.search(r"<!-- test: model card -->\n```python\n(.*?)```", CARD.read_text(encoding="utf-8"), re.DOTALL)
    assert match
    pairs = {"train": make_pairs(16, 1), "valid": make_pairs(4, 2), "test": [("q1 q2 q3", "z3 z2 z1")]}
    data = binarize(tmp_path / "data", pairs, "de", "en", joined=True)
    write_gate_labels(data)
    train(data, tmp_path / "trained", *GATED, "--share-all-embeddings", "--max-epoch", "1", "--no-epoch-checkpoints")
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(tmp_path / "trained" / "checkpoint_last.pt", folder / "model.pt")
    for lang in ("de", "en"):
        shutil.copy(data / f"dict.{lang}.txt", folder)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(compile(match[1], str(CARD), "exec"), {})
    expected = generate(data, folder / "model.pt", "--beam", "4", "--max-len-b", "200")[0].text
    assert capsys.readouterr().out.splitlines()[-1] == str([expected])
