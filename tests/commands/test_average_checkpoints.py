"""``ctxgates average-checkpoints``: the numbers can be checked with a pencil."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Callable, List, Sequence, Tuple

import pytest
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from fairseq_ctxgates.commands.average_checkpoints import average_checkpoints, main
from fairseq_ctxgates.errors import UserError


def save(path: Path, updates: int = 0, **parameters: torch.Tensor) -> Path:
    torch.save({"model": parameters, "extra_state": {"updates": updates}}, path)
    return path


def run(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


def test_the_mean_replaces_the_parameters_and_all_else_is_the_last_checkpoints(tmp_path: Path) -> None:
    first = save(tmp_path / "a.pt", updates=10, weight=torch.tensor([[1.0, 2.0], [3.0, 4.0]]), steps=torch.tensor([10]))
    last = save(tmp_path / "b.pt", updates=20, weight=torch.tensor([[3.0, 6.0], [3.0, 0.0]]), steps=torch.tensor([20]))
    run("--inputs", first, last, "--output", tmp_path / "mean.pt")
    mean = torch.load(tmp_path / "mean.pt")
    assert mean["model"]["weight"].tolist() == [[2.0, 4.0], [3.0, 2.0]]
    assert mean["model"]["steps"].tolist() == [20]
    assert mean["extra_state"] == {"updates": 20}


def test_half_precision_does_not_overflow_in_the_sum_and_stays_half_precision(tmp_path: Path) -> None:
    # 3 times 60,000 is more than the largest float16, 65,504.
    paths = [save(tmp_path / f"{i}.pt", weight=torch.tensor([60000.0]).half()) for i in range(3)]
    mean = average_checkpoints(paths)["model"]["weight"]
    assert mean.dtype == torch.float16
    assert mean.tolist() == [60000.0]


def test_shared_embeddings_stay_shared(tmp_path: Path) -> None:
    shared = [torch.tensor([1.0]), torch.tensor([4.0])]
    paths = [save(tmp_path / f"{i}.pt", encoder=weight, decoder=weight) for i, weight in enumerate(shared)]
    model = average_checkpoints(paths)["model"]
    assert model["encoder"].tolist() == [2.5]
    assert model["encoder"].data_ptr() == model["decoder"].data_ptr()


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--num-epoch-checkpoints", 2], 9.5),  # 9 and 10: by number, not by name
        (["--num-epoch-checkpoints", 2, "--checkpoint-upper-bound", 9], 8.5),
        (["--num-update-checkpoints", 2], 150.0),
        (["--num-update-checkpoints", 1, "--checkpoint-upper-bound", 150], 100.0),
    ],
)
def test_the_newest_checkpoints_of_a_directory(tmp_path: Path, arguments: Sequence[object], expected: float) -> None:
    for epoch in (8, 9, 10):
        save(tmp_path / f"checkpoint{epoch}.pt", weight=torch.tensor([float(epoch)]))
    for update in (50, 100, 200):
        save(tmp_path / f"checkpoint_3_{update}.pt", weight=torch.tensor([float(update)]))
    for other in ("checkpoint_best.pt", "checkpoint_last.pt"):
        save(tmp_path / other, weight=torch.tensor([-1e6]))
    run("--inputs", tmp_path, "--output", tmp_path / "mean.pt", *arguments)
    assert torch.load(tmp_path / "mean.pt")["model"]["weight"].tolist() == [expected]


@pytest.mark.parametrize(("maximized", "expected"), [(False, (0 + 30) / 2), (True, (10 + 20) / 2)])
def test_the_best_checkpoints_by_what_the_training_looked_for(tmp_path: Path, maximized: bool, expected: float) -> None:
    options = {"maximize_best_checkpoint_metric": maximized}
    for number, name in enumerate(["loss_4.0213", "loss_9.5000", "loss_10.1002", "loss_-1.5000"]):
        state = {"model": {"weight": torch.tensor([10.0 * number])}, "cfg": {"checkpoint": options}}
        torch.save(state, tmp_path / f"checkpoint.best_{name}.pt")
    save(tmp_path / "checkpoint_best.pt", weight=torch.tensor([-1e6]))
    for inputs in ([tmp_path], sorted(tmp_path.glob("checkpoint.best_*"))):
        run("--inputs", *inputs, "--output", tmp_path / "mean.pt", "--num-best-checkpoints", 2)
        assert torch.load(tmp_path / "mean.pt")["model"]["weight"].tolist() == [expected]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--num-best-checkpoints", 1], "0 checkpoints named like .*, 1 were asked for: check --keep-best-checkpoints"),
        (["--num-epoch-checkpoints", 2], "has 1 checkpoints"),
        (["--num-epoch-checkpoints", 1, "--checkpoint-upper-bound", 4], "has 0 checkpoints .* up to 4"),
        (["--num-update-checkpoints", 0], "ask for 1 or more"),
        ([], "is a folder: name files in it, or give --num-epoch-checkpoints"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(tmp_path: Path, arguments: Sequence[object], message: str) -> None:
    save(tmp_path / "checkpoint5.pt", weight=torch.tensor([1.0]))
    with pytest.raises(UserError, match=message):
        run("--inputs", tmp_path, "--output", tmp_path / "mean.pt", *arguments)
    assert os.listdir(tmp_path) == ["checkpoint5.pt"]


def test_a_training_that_does_not_exist(tmp_path: Path) -> None:
    for kind in ("epoch", "best"):
        with pytest.raises(UserError, match="missing .*: give the --save-dir of the training run"):
            run("--inputs", tmp_path / "missing", "--output", tmp_path / "mean.pt", f"--num-{kind}-checkpoints", 1)


def test_a_full_disk_leaves_the_previous_output_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save(tmp_path / "a.pt", weight=torch.zeros(1))
    output = tmp_path / "mean.pt"
    output.write_bytes(b"previous")

    def fill_the_disk(state: object, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", fill_the_disk)
    with pytest.raises(UserError, match="mean.pt could not be written: .*No space left"):
        run("--inputs", checkpoint, "--output", output)
    assert output.read_bytes() == b"previous"
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "mean.pt"]


class Intruder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Tuple[Callable[..., None], Tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_with_a_foreign_object_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    torch.save({"model": {}, "extra_state": Intruder(tmp_path / "intruder")}, tmp_path / "a.pt")
    with pytest.raises(UserError, match="a.pt .*refused"):
        run("--inputs", tmp_path / "a.pt", "--output", tmp_path / "mean.pt")
    assert not (tmp_path / "intruder").exists()


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    save(tmp_path / "a.pt", weight=torch.zeros(1000))
    (tmp_path / "a.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:2000])
    with pytest.raises(UserError, match="a.pt is damaged .*: name another checkpoint$"):
        run("--inputs", tmp_path / "a.pt", "--output", tmp_path / "mean.pt")


def test_an_output_folder_that_does_not_exist_is_said_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is not a directory"):
        run("--inputs", tmp_path / "missing.pt", "--output", tmp_path / "nowhere" / "mean.pt")


def tiny_transformer(data_dir: Path) -> Tuple[object, List[torch.nn.Module]]:
    """fairseq's configuration, as a checkpoint holds it, and two models of it with different parameters."""
    for lang in ("de", "en"):
        Dictionary().save(str(data_dir / f"dict.{lang}.txt"))
    size = ["--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "8", "--decoder-embed-dim", "8"]
    heads = ["--encoder-attention-heads", "2", "--decoder-attention-heads", "2"]
    arguments = [str(data_dir), "-s", "de", "-t", "en", "--arch", "transformer", *size, *heads]
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))
    task = tasks.setup_task(config.task)
    return OmegaConf.to_container(config, resolve=True, enum_to_str=True), [
        task.build_model(config.model) for _ in "ab"
    ]


def test_fairseq_loads_the_mean_of_two_of_its_checkpoints(tmp_path: Path) -> None:
    config, models = tiny_transformer(tmp_path)
    history = [{"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 1}]
    rest = {"args": None, "cfg": config, "optimizer_history": history, "extra_state": {"train_iterator": {"epoch": 1}}}
    for epoch, model in enumerate(models, start=1):
        torch.save({"model": model.state_dict(), **rest}, tmp_path / f"checkpoint{epoch}.pt")
    run("--inputs", tmp_path, "--num-epoch-checkpoints", 2, "--output", tmp_path / "mean.pt")
    (mean,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "mean.pt")])
    name = "decoder.layers.0.fc1.weight"
    first, second, averaged = (dict(model.named_parameters())[name] for model in (*models, mean))
    assert not torch.equal(first, second)
    assert torch.allclose(averaged, (first + second) / 2)
