"""The concatenation baseline does not switch itself off: what a model reads is in its checkpoint, for every command of
fairseq and every task."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import pytest
import torch
from fairseq import checkpoint_utils

import ctxgates
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.inter_sentence.concatenated_sentences import ConcatenatedSentences
from fairseq_ctxgates.inter_sentence.preceding_stream import PrecedingSentencesConfig
from tests.helpers.documents import COMMON
from tests.helpers.fairseq_commands import (
    DECODING,
    PLAIN,
    SEARCH,
    SMOOTHED,
    check_same_translations,
    generate,
    interactive,
    logged,
    train,
    train_in_two_processes,
    validate,
)
from tests.helpers.models import build_model
from tests.helpers.trained import Trained, train_models
from warm_python import WarmPython

OWN = ("--arch", "context_transformer_tiny", *SMOOTHED)  # the Transformer of this package, every mechanism off
MODELS = {"stock": PLAIN, "own": OWN}  # the architecture is fairseq's, or of this package
CONCATENATE = ("--concatenate-preceding", "</s>")
STOCK_TASK = ("--task", "translation")
NEEDS = "needs --user-dir and --task context_translation: trained with --concatenate-preceding </s>"


@pytest.fixture(scope="module")
def trained(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """For each of ``MODELS`` one trained for three epochs, of which the first leaves a checkpoint."""
    options = {name: (*model, *CONCATENATE, "--max-epoch", 3) for name, model in MODELS.items()}
    return train_models(documents, tmp_path_factory.mktemp("concatenated"), options, COMMON[0])


def resume(trained: Trained, model: str, folder: Path, *options: Any) -> str:
    """Go on from the first epoch's checkpoint to the third, in this folder, and return the log."""
    folder.mkdir(exist_ok=True)
    shutil.copy(trained.folder / model / "checkpoint1.pt", folder / "checkpoint_last.pt")
    return train(trained.data, folder, *MODELS[model], *COMMON, "--max-epoch", 3, *options)


def losses(log: str) -> List[Any]:
    """The losses of the training and of the validation of the second and third epoch."""
    return [entry["loss"] for entry in logged(log)][-6:] + [entry["valid_loss"] for entry in logged(log, "valid")][-2:]


def task_state(checkpoint: Path) -> Dict[str, Any]:
    state: Dict[str, Any] = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["task_state"]
    return state


# Other tasks


@pytest.mark.parametrize("model", MODELS)
def test_a_task_that_gives_another_input_is_refused(trained: Trained, model: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=NEEDS):
        generate(trained.data, trained[model], *STOCK_TASK)
    with pytest.raises(RuntimeError, match=NEEDS):
        interactive(trained.data, trained[model], ["q1 q2"], tmp_path, *SEARCH, *STOCK_TASK)


def test_the_error_of_our_architectures_is_one_line(trained: Trained) -> None:
    with pytest.raises(UserError, match=f"^the model of this checkpoint {NEEDS}$"):
        generate(trained.data, trained["own"], *STOCK_TASK)


@pytest.mark.process
def test_fairseq_without_the_package_refuses_a_stock_architecture(trained: Trained, warm_python: WarmPython) -> None:
    """The command line that decodes any Transformer of fairseq's: no --user-dir, no --task."""
    command = [warm_python.python, "-m", "fairseq_cli.generate", str(trained.data), "--path", str(trained["stock"])]
    command += DECODING
    # torch 2.6 and later would refuse to unpickle any checkpoint of fairseq's, where nothing allows it.
    environment = {**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode and NEEDS in done.stderr


@pytest.mark.parametrize("model", MODELS)
def test_validate_takes_the_task_of_the_checkpoint(trained: Trained, model: str) -> None:
    """So fairseq does, whatever --task says."""
    last = float(logged(trained.logs[model], "valid")[-1]["valid_loss"])
    for task in ((), STOCK_TASK):
        assert float(validate(trained.data, trained[model], *task)["valid_loss"]) == pytest.approx(last, abs=2e-3)


@pytest.mark.parametrize("model", MODELS)
def test_training_does_not_go_on_with_another_task(trained: Trained, model: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="Cannot load model parameters") as error:  # fairseq's
        resume(trained, model, tmp_path, *STOCK_TASK)
    assert NEEDS in str(error.value.__context__)


def test_a_model_that_reads_plain_sentences_goes_with_any_task(trained_on_documents: Trained) -> None:
    plain = trained_on_documents["plain"]
    found = generate(trained_on_documents.data, plain, *STOCK_TASK, "--required-batch-size-multiple", 1)
    check_same_translations(found, generate(trained_on_documents.data, plain))


# Resumed training


@pytest.mark.parametrize("model", MODELS)
def test_training_goes_on_with_what_the_checkpoint_says(trained: Trained, model: str, tmp_path: Path) -> None:
    expected = losses(trained.logs[model])
    log = resume(trained, model, tmp_path / "without")
    assert "training continues with --concatenate-preceding </s>, as the checkpoint was trained" in log
    assert losses(log) == expected == losses(resume(trained, model, tmp_path / "with", *CONCATENATE))
    last = tmp_path / "without" / "checkpoint_last.pt"
    assert task_state(last)["concatenate_preceding"] == "</s>"
    check_same_translations(generate(trained.data, last), trained.translations(model))
    with pytest.raises(RuntimeError, match=NEEDS):
        generate(trained.data, last, *STOCK_TASK)


def test_two_processes_go_on_together(trained: Trained, tmp_path: Path, warm_python: WarmPython) -> None:
    """The first one reads the checkpoint and hands it on."""
    common = (*OWN, *COMMON, "--max-epoch", 3)
    logs = []
    for name, options in (("with", CONCATENATE), ("without", ())):
        (tmp_path / name).mkdir()
        shutil.copy(trained.folder / "own" / "checkpoint1.pt", tmp_path / name / "checkpoint_last.pt")
        logs.append(train_in_two_processes(warm_python.python, trained.data, tmp_path / name, *common, *options))
    assert losses(logs[0]) == losses(logs[1])


def test_two_processes_do_not_go_on_as_something_else(
    trained: Trained, tmp_path: Path, warm_python: WarmPython
) -> None:
    shutil.copy(trained.folder / "own" / "checkpoint1.pt", tmp_path / "checkpoint_last.pt")
    command = (*OWN, *COMMON, *CONCATENATE, "--activation-fn", "gelu")
    with pytest.raises(AssertionError, match="the checkpoint was trained with --activation-fn relu, and the model has"):
        train_in_two_processes(warm_python.python, trained.data, tmp_path, *command)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            "own",
            ("--concatenate-preceding", "q1"),
            "--concatenate-preceding q1: the checkpoint was trained with .* </s>;",
        ),
        ("stock", ("--concatenate-preceding", "q1"), "--concatenate-preceding q1: .*--finetune-from-model"),
    ],
)
def test_options_that_contradict_the_checkpoint(
    trained: Trained, tmp_path: Path, model: str, options: Sequence[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        resume(trained, model, tmp_path, *options)


def test_concatenation_does_not_begin_in_the_middle_of_a_training(
    trained_on_documents: Trained, tmp_path: Path
) -> None:
    options = (*PLAIN, *COMMON, *CONCATENATE, "--max-epoch", 3)
    with pytest.raises(UserError, match="--concatenate-preceding </s>: the checkpoint was trained without it; leave"):
        train(trained_on_documents.data, tmp_path, *options, "--restore-file", trained_on_documents["plain"])


@pytest.mark.parametrize(
    "start", [("--finetune-from-model",), ("--reset-optimizer", "--reset-dataloader", "--restore-file")]
)
def test_a_new_training_may_begin_with_concatenation(
    trained_on_documents: Trained, tmp_path: Path, start: Sequence[str]
) -> None:
    data = trained_on_documents.data
    options = (*PLAIN, *COMMON, *CONCATENATE, "--max-epoch", 1)
    train(data, tmp_path, *options, *start, trained_on_documents["plain"])
    with pytest.raises(RuntimeError, match=NEEDS):
        generate(data, tmp_path / "checkpoint_last.pt", *STOCK_TASK)


def test_a_fine_tuning_is_resumed_as_it_began(trained_on_documents: Trained, tmp_path: Path) -> None:
    """The same command again resumes it, and fairseq then leaves --finetune-from-model unread."""
    start = (*PLAIN, *COMMON, "--finetune-from-model", trained_on_documents["plain"])
    train(trained_on_documents.data, tmp_path, *start, *CONCATENATE, "--max-epoch", 1)
    with pytest.raises(UserError, match="--concatenate-preceding q1: the checkpoint was trained with .* </s>;"):
        train(trained_on_documents.data, tmp_path, *start, "--concatenate-preceding", "q1", "--max-epoch", 2)
    log = train(trained_on_documents.data, tmp_path, *start, "--max-epoch", 2)
    assert "training continues with --concatenate-preceding </s>" in log


def test_a_model_fine_tuned_from_a_concatenating_one_concatenates(trained: Trained, tmp_path: Path) -> None:
    log = train(trained.data, tmp_path, *OWN, *COMMON, "--max-epoch", 1, "--finetune-from-model", trained["own"])
    assert "training continues with --concatenate-preceding </s>" in log
    assert task_state(tmp_path / "checkpoint_last.pt")["concatenate_preceding"] == "</s>"


def test_a_warm_start_takes_parameters_only(trained: Trained, tmp_path: Path) -> None:
    train(trained.data, tmp_path, *OWN, *COMMON, "--warm-start", trained["own"], "--max-update", 1)
    assert task_state(tmp_path / "checkpoint_last.pt")["concatenate_preceding"] is None
    assert generate(trained.data, tmp_path / "checkpoint_last.pt", *STOCK_TASK)


# Further ways of a checkpoint


def test_an_average_of_checkpoints_reads_the_same_input(trained: Trained, tmp_path: Path) -> None:
    epochs = [str(trained.folder / "stock" / f"checkpoint{number}.pt") for number in (2, 3)]
    ctxgates.main(["average-checkpoints", "--inputs", *epochs, "--output", str(tmp_path / "mean.pt")])
    with pytest.raises(RuntimeError, match=NEEDS):
        generate(trained.data, tmp_path / "mean.pt", *STOCK_TASK)
    assert len(generate(trained.data, tmp_path / "mean.pt")) == 20


def test_exponential_moving_average(trained: Trained, tmp_path: Path) -> None:
    """fairseq copies the model and averages its parameters; both trainings go on with the same ones."""
    ema = ("--store-ema", "--ema-fp32", "--ema-decay", "0.5")
    train(trained.data, tmp_path / "first", *OWN, *COMMON, *CONCATENATE, *ema, "--max-epoch", 1)
    averages = []
    for name, options in (("with", CONCATENATE), ("without", ())):
        shutil.copytree(tmp_path / "first", tmp_path / name)
        train(trained.data, tmp_path / name, *OWN, *COMMON, *options, *ema, "--max-epoch", 2)
        state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / name / "checkpoint_last.pt"))
        averages.append(state["extra_state"]["ema"])
    assert averages[0].keys() == averages[1].keys()
    for name, value in averages[0].items():
        assert torch.equal(value, averages[1][name]) or name.endswith(("_float_tensor", "version")), name


def test_a_default_that_is_written_out_is_saved_as_none() -> None:
    """So that both go together in an ensemble, and training goes on with either."""

    def saved(number: Optional[int], target_number: Optional[int]) -> Dict[str, Optional[str]]:
        options = PrecedingSentencesConfig(
            concatenate_preceding="</s>",
            concatenate_preceding_target=True,
            concatenate_number=number,
            concatenate_target_number=target_number,
        )
        return ConcatenatedSentences.values_to_save(options, set())

    assert saved(None, None) == saved(1, None) == saved(1, 1)
    assert saved(2, 1) == {**saved(None, None), "concatenate_number": "2", "concatenate_target_number": "1"}


def test_an_option_of_somebodys_own_is_refused_where_it_is_not_known() -> None:
    model = build_model("transformer")
    entry = NEEDS.replace("concatenate-preceding", "option-of-my-own")
    with pytest.raises(RuntimeError, match=entry):
        model.load_state_dict({**model.state_dict(), entry: torch.zeros(0)}, strict=True)
    model.load_state_dict({**model.state_dict(), NEEDS: torch.zeros(0)}, strict=True)
    assert list(model.state_dict())[-1] == NEEDS
