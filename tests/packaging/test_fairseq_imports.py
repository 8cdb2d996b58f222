"""What is imported from fairseq: its documented extension points anywhere, everything else in compat.py alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, Optional, Set, Tuple

import pytest

from fairseq_ctxgates import compat
from tests.helpers.pages import ROOT

PACKAGE = ROOT / "fairseq_ctxgates"
# By package of fairseq, what its documentation tells the writers of plugins to import from it: docs/decisions.md.
EXTENSION_POINTS: Dict[str, Set[str]] = {
    "fairseq": {"checkpoint_utils", "utils"},
    "fairseq.criterions": {"FairseqCriterion", "register_criterion"},
    "fairseq.data": {
        *("BaseWrapperDataset", "ConcatDataset", "Dictionary", "FairseqDataset", "IndexedRawTextDataset"),
        *("LanguagePairDataset", "data_utils", "encoders"),
    },
    "fairseq.dataclass": {"ChoiceEnum", "FairseqDataclass"},
    "fairseq.models": {
        *("BaseFairseqModel", "FairseqEncoder", "FairseqEncoderDecoderModel", "FairseqIncrementalDecoder"),
        "register_model",
    },
    "fairseq.modules": {"FairseqDropout", "MultiheadAttention"},
    "fairseq.tasks": {"FairseqTask", "register_task"},
}


# A program in which a package is not installed.
MISSING = """
class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {0!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing)
"""


def imports_of_fairseq(path: Path) -> Iterator[Tuple[str, Optional[str]]]:
    """The package and the name of everything that a file imports from fairseq; no name for ``import fairseq.x``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in ("fairseq", "fairseq_cli"):
                    yield alias.name, None
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            if node.module.split(".")[0] in ("fairseq", "fairseq_cli"):
                yield from ((node.module, alias.name) for alias in node.names)


def test_only_compat_imports_more_than_the_extension_points() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), module, name)
        for path in PACKAGE.rglob("*.py")
        for module, name in imports_of_fairseq(path)
        if path.name != "compat.py"
    }
    assert not {entry for entry in found if entry[2] not in EXTENSION_POINTS.get(entry[1], set())}
    used = {(module, name) for _, module, name in found}
    assert used == {(module, name) for module, names in EXTENSION_POINTS.items() for name in names}


def test_decisions_names_the_extension_points() -> None:
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    assert not [name for names in EXTENSION_POINTS.values() for name in names if f"`{name}`" not in text]


@pytest.mark.process
@pytest.mark.parametrize(
    ("sabotage", "message"),
    [
        (MISSING.format("fairseq"), "fairseq is not installed in this environment: {remedy}"),
        (MISSING.format("torch"), "torch is not installed in this environment: {remedy}"),
        (
            "import fairseq.modules.transformer_layer as layers; del layers.TransformerDecoderLayerBase",
            "the fairseq in this environment cannot be used (cannot import name 'TransformerDecoderLayerBase' from",
        ),
    ],
    ids=["no fairseq", "no torch", "another fairseq"],
)
def test_a_fairseq_that_cannot_be_used_is_one_line(sabotage: str, message: str) -> None:
    program = f"import sys\n{sabotage}\nimport ctxgates; ctxgates.main(['gate-labels', 'data-bin'])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]  # fairseq and torch may warn before
    assert (done.returncode, done.stdout) == (1, "")
    assert last.startswith(f"error: {message.format(remedy=compat.INSTALL_FAIRSEQ)}")
    assert last.endswith(compat.INSTALL_FAIRSEQ)
    assert "Traceback" not in done.stderr
