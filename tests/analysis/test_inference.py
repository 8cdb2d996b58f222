"""Models that the analyses load: a model of the user's own, from ``--user-dir``."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Sequence

import pytest
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_ctxgates.analysis import get_analysis
from fairseq_ctxgates.analysis.inference import (
    add_inference_options,
    check_overrides,
    checkpoint_paths,
    register_models,
)
from fairseq_ctxgates.errors import UserError
from tests.helpers import fairseq_commands as commands
from tests.helpers.corpus import binarize
from tests.helpers.trained import Trained
from warm_python import WarmPython

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
def test_a_model_of_the_users_own(tmp_path: Path, warm_python: WarmPython) -> None:
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
        [warm_python.python, "-c", ANALYZE, *map(str, arguments)],
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


@pytest.mark.parametrize(
    ("analysis", "options"),
    [
        ("forced-decoding", ("--path", "{first}", "missing.pt")),
        ("contrastive", ("--path", "{first}:missing.pt")),
        ("cxmi", ("--path", "{first}", "missing.pt:{first}")),
        ("cxmi", ("--path", "{first}", "--baseline-path", "missing.pt")),
    ],
)
def test_a_later_model_that_is_not_there_is_refused_before_the_first_is_loaded(
    analysis: str, options: Sequence[str], tmp_path: Path
) -> None:
    first = tmp_path / "first.pt"
    first.write_bytes(b"no checkpoint")
    with pytest.raises(UserError, match="missing.pt not found: give a checkpoint of fairseq-train to --path"):
        get_analysis(analysis).main([str(tmp_path), "--cpu", *(option.format(first=first) for option in options)])


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path} is a folder: name a checkpoint in it"):
        get_analysis("cxmi").main([str(tmp_path), "--cpu", "--path", str(tmp_path)])


# --- --model-overrides


def check(trained: Trained, models: Sequence[str], overrides: str, reads_lines: bool = False) -> None:
    parser = argparse.ArgumentParser()
    add_inference_options(parser, several=True)
    paths = [str(trained[model]) for model in models]
    args = parser.parse_args([str(trained.data), "--path", *paths, "--model-overrides", overrides, "--cpu"])
    check_overrides(args, checkpoint_paths(args), reads_lines)


@pytest.mark.parametrize(
    ("models", "overrides"),
    [
        (["plain", "isg"], "{'inter_sentence_ablation': 'null'}"),
        (["stock"], "{'dropout': 0.3, 'left_pad_source': False}"),
        (["plain", "stock"], "{'concatenate_preceding': 'q1'}"),
    ],
)
def test_an_override_that_one_of_the_models_reads(
    trained_on_documents: Trained, models: Sequence[str], overrides: str
) -> None:
    check(trained_on_documents, models, overrides)


@pytest.mark.parametrize(
    ("models", "key"),
    [
        (["plain", "stock"], "inter_sentence_ablation"),
        (["stock"], "concatenate_preceding"),
        (["stock"], "dropuot"),
        (["isg"], "warm_start"),
        (["isg"], "preceding_length_ratio"),
        (["isg"], "load_gate_labels"),
        (["isg"], "relation_extractor"),
        (["isg", "stock"], "beam"),
    ],
)
def test_an_override_that_nothing_reads(trained_on_documents: Trained, models: Sequence[str], key: str) -> None:
    with pytest.raises(UserError, match=f"--model-overrides: nothing reads '{key}' from there"):
        check(trained_on_documents, models, f"{{'{key}': 1}}")


def test_the_data_directory_is_no_override(trained_on_documents: Trained) -> None:
    with pytest.raises(UserError, match="--model-overrides: the data directory is .*; leave out 'data'"):
        check(trained_on_documents, ["stock"], "{'data': 'elsewhere'}")


def test_an_override_of_lines_of_text(trained_on_documents: Trained) -> None:
    check(trained_on_documents, ["isg"], "{'relation_extractor': None}", reads_lines=True)


@pytest.mark.parametrize(
    ("analysis", "options"),
    [
        ("forced-decoding", ("--path", "plain", "stock")),
        ("contrastive", ("--path", "plain", "stock", "--source", "x", "--reference", "x", "--contrastive", "x")),
        ("cxmi", ("--path", "concatenated", "--baseline-path", "plain")),
        ("attention-entropy", ("--path", "plain")),
        ("gates", ("--path", "plain")),
    ],
)
def test_every_analysis_refuses_it_before_it_works(
    trained_on_documents: Trained, analysis: str, options: Sequence[str]
) -> None:
    arguments = [str(trained_on_documents[text]) if text in trained_on_documents.logs else text for text in options]
    null = ("--model-overrides", "{'inter_sentence_ablation': 'null'}", "--cpu")
    with pytest.raises(UserError, match="--model-overrides: nothing reads 'inter_sentence_ablation' from there"):
        get_analysis(analysis).main([str(trained_on_documents.data), *arguments, *null])
