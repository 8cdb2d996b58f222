"""Models that the analyses load: a model of the user's own, from ``--user-dir``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_ctxgates.analysis.inference import register_models
from fairseq_ctxgates.errors import UserError
from tests.helpers import fairseq_commands as commands
from tests.helpers.corpus import binarize

OWN_MODEL = """
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, tiny_architecture

@register_model("own_transformer")
class OwnTransformer(TransformerModel):
    pass

register_model_architecture("own_transformer", "own_transformer_tiny")(tiny_architecture)
"""


# In a process of its own, which knows no model that this one has registered.
ANALYZE = """
import sys
import ctxgates

arguments, user_dir = sys.argv[1:-1], sys.argv[-1]
try:
    ctxgates.main(["analyze", *arguments])
except SystemExit as exit:
    assert exit.code == 1
ctxgates.main(["analyze", *arguments, "--user-dir", user_dir])
"""


@pytest.mark.slow
def test_a_model_of_the_users_own(tmp_path: Path) -> None:
    own = tmp_path / "own_models_of_test_inference"
    own.mkdir()
    (own / "__init__.py").write_text(OWN_MODEL)
    pairs = {"train": commands.make_pairs(16, seed=1), "valid": commands.make_pairs(4, seed=3)}
    data = binarize(tmp_path / "data", dict(pairs), "de", "en")
    commands.train(data, tmp_path, *commands.SMOOTHED, "--user-dir", own, "--arch", "own_transformer_tiny",
                   "--max-update", 1)  # fmt: skip
    texts = [(tmp_path / name, language) for name, language in (("source", 0), ("reference", 1), ("contrastive", 1))]
    for path, language in texts:
        path.write_text("".join(f"{pair[language]}\n" for pair in pairs["valid"]))
    options = [text for path, _ in texts for text in (f"--{path.name}", path)]
    checkpoint = tmp_path / "checkpoint_last.pt"

    arguments = ["contrastive", data, "--path", checkpoint, "--cpu", *options, own]
    found = subprocess.run(
        [sys.executable, "-c", ANALYZE, *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert f"error: fairseq does not know the model or the task of {checkpoint}: if they are your own" in found.stderr
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("accuracy on") == 1


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--user-dir .*/nowhere not found"):
        register_models(str(tmp_path / "nowhere"))


def test_a_folder_that_cannot_be_imported(tmp_path: Path) -> None:
    folder = tmp_path / "broken_models_of_test_inference"
    folder.mkdir()
    (folder / "__init__.py").write_text("import no_such_module\n")
    with pytest.raises(UserError, match="cannot be imported: No module named 'no_such_module'"):
        register_models(str(folder))


def test_the_packages_own_folder_is_registered_already() -> None:
    architectures = dict(ARCH_MODEL_REGISTRY)
    register_models(commands.USER_DIR)
    assert ARCH_MODEL_REGISTRY == architectures
