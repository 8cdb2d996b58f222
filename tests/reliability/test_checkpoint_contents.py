"""What fairseq puts into checkpoints, now and in its first releases, is loaded as it was saved."""

from __future__ import annotations

import argparse
import math
import pickletools
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Dict, List, Set, Tuple

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, optim, options
from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import EncoderLangtok, LangTokSpec, LangTokStyle
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import meters, metrics
from fairseq.optim import lr_scheduler
from omegaconf import DictConfig, OmegaConf
from torch import nn

from fairseq_ctxgates.checkpoints.loading import TRUSTED, load

CLASSIC = Path(__file__).parent.parent / "data" / "classic"
ZIP, LEGACY = True, False


def arguments(*more: str) -> argparse.Namespace:
    """The options of a training run."""
    given = ["data-bin", "--arch", "transformer", "--task", "translation", "-s", "de", "-t", "en", *more]
    return options.parse_args_and_arch(options.get_training_parser(), given)


def dictionary() -> Dictionary:
    made = Dictionary()
    made.add_symbol("Haus", n=3)
    return made


def old_meters() -> OrderedDict:
    """Which fairseq 0.6 to 0.8 saved as objects."""
    made = OrderedDict(loss=meters.AverageMeter(), wps=meters.TimeMeter(), wall=meters.StopwatchMeter())
    made["loss"].update(3.5)
    made["wps"].update(10)
    made["wall"].start()
    made["wall"].stop()
    return made


def metrics_of_bleu() -> Any:
    """As ``--eval-bleu`` logs them."""
    metrics.reset()
    with metrics.aggregate("valid"):
        metrics.log_scalar("loss", np.float64(2.5), np.int64(3))
        metrics.log_scalar("_bleu_counts", np.array([5, 4, 3, 2]))
        metrics.log_scalar("_bleu_sys_len", np.int64(7))
    return metrics.state_dict()


CONTENTS: Dict[str, Any] = {
    "Python's numbers": [0, -1, 255, 256, 65536, 2**40, -(2**70), 0.5, math.inf, True, False, None, 1j],
    "text": ["", "Straße", "\u4e2d", "\U0001f600", "a" * 300],
    "bytes": [b"", b"\0\xff", bytearray(b"abc")],
    "containers": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [[]], {}, {1: {2: [3]}}, {1, 2}, frozenset([1])],
    "collections": [OrderedDict(a=1), Counter("aab")],
    "a path": Path("checkpoints") / "model.pt",
    "options before Hydra": argparse.Namespace(
        arch="transformer", lr=[0.0007], adam_betas="(0.9, 0.98)", user_dir=None
    ),
    "options with a model's": {"model": argparse.Namespace(encoder_layers=6), "task": {"data": "data-bin"}},
    "a configuration as it is": OmegaConf.create({"task": {"data": None, "n": 1}, "lr": [0.1], "again": "${task.n}"}),
    "enumerations": [EncoderLangtok.src, LangTokSpec.main, LangTokStyle.mbart],
    "an odd set of types": [
        torch.Size([2, 3]),
        torch.device("cpu"),
        torch.device("cuda", 1),
        torch.float16,
        torch.int8,
    ],
    "the old iterator": {"epoch": 3, "iterations_in_epoch": np.int64(7), "shuffle": True},
}
TENSORS: Dict[str, Any] = {
    **{
        str(dtype): torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16)
        + (torch.int32, torch.int64, torch.bool, torch.complex64)
    },
    "of no dimension": torch.tensor(1.5),
    "without elements": torch.zeros(0, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "a part": torch.arange(6.0)[2:4],
    "a parameter": nn.Parameter(torch.ones(2)),
    "the state of random numbers": torch.get_rng_state(),
}
ARRAYS: Dict[str, Any] = {
    **{
        name: np.arange(6).reshape(2, 3).astype(name)
        for name in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
        + ("float16", "float32", "float64", "complex64", "complex128", ">i4", ">f8")
    },
    "in columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "a view": np.arange(6.0)[::2],
    "of no dimension": np.array(1.5),
    "without elements": np.zeros((0, 3)),
    "of six dimensions": np.zeros((1, 2, 1, 2, 1, 2)),
}


def saved_and_loaded(content: Any, path: Path, is_zip: bool = ZIP) -> Any:
    torch.save({"model": {}, "extra_state": content}, path, _use_new_zipfile_serialization=is_zip)
    return load(path)["extra_state"]


def names_in(path: Path) -> Set[str]:
    """The functions and classes that a checkpoint of the zip format names."""
    with zipfile.ZipFile(path) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        return {str(name) for code, name, _ in pickletools.genops(archive.read(member)) if code.name == "GLOBAL"}


@pytest.mark.parametrize("is_zip", [ZIP, LEGACY])
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_objects_are_loaded_as_they_were_saved(content: Any, is_zip: bool, tmp_path: Path) -> None:
    found = saved_and_loaded(content, tmp_path / "a.pt", is_zip)
    assert found == content
    assert type(found) is type(content)


@pytest.mark.parametrize("is_zip", [ZIP, LEGACY])
@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_tensors_keep_their_type_strides_and_numbers(tensor: Any, is_zip: bool, tmp_path: Path) -> None:
    found = saved_and_loaded(tensor, tmp_path / "a.pt", is_zip)
    assert (type(found), found.dtype, found.stride()) == (type(tensor), tensor.dtype, tensor.stride())
    assert torch.equal(found, tensor)


def test_tensors_that_share_memory_still_do(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    first, second = saved_and_loaded([whole, whole[2:]], tmp_path / "a.pt")
    second.zero_()
    assert first.tolist() == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("is_zip", [ZIP, LEGACY])
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_arrays_keep_their_shape_and_numbers_in_the_byte_order_of_here(
    array: np.ndarray, is_zip: bool, tmp_path: Path
) -> None:
    found = saved_and_loaded(array, tmp_path / "a.pt", is_zip)
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (array.dtype.newbyteorder("="), array.shape)  # as NumPy loads it anywhere
    assert np.array_equal(found, array)
    assert np.array_equal(found + 1 - 1, array)


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_numbers_of_numpy(array: np.ndarray, tmp_path: Path) -> None:
    numbers = list(array.flat)
    found = saved_and_loaded(numbers, tmp_path / "a.pt")
    assert [(type(number), number) for number in found] == [(type(number), number) for number in numbers]


def test_what_is_saved_again_names_nothing_of_ours(tmp_path: Path) -> None:
    """So a checkpoint that was loaded and saved is loaded by whoever could load it before."""
    array = np.arange(6.0)
    found = saved_and_loaded([array, np.float32(2)], tmp_path / "a.pt")
    again = saved_and_loaded([found, found[0] * 2, found[0][1:]], tmp_path / "b.pt")
    assert np.array_equal(again[1], array * 2)
    assert names_in(tmp_path / "b.pt") == names_in(tmp_path / "a.pt")
    assert not any("ctxgates" in name for name in names_in(tmp_path / "b.pt"))


def test_arrays_of_the_other_numpy(tmp_path: Path) -> None:
    """NumPy 2 has another name for the module that makes arrays."""
    one, two = b"numpy.core.multiarray\n", b"numpy._core.multiarray\n"
    torch.save([np.arange(3), np.float64(2)], tmp_path / "a.pt", _use_new_zipfile_serialization=LEGACY)
    content = (tmp_path / "a.pt").read_bytes()
    assert (one in content) != (two in content)
    for number, name in enumerate((one, two)):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(content.replace(one, name).replace(two, name))
        array, scalar = load(path)
        assert (array.tolist(), scalar) == ([0, 1, 2], 2)


@pytest.mark.parametrize("is_zip", [ZIP, LEGACY])
def test_meters_keep_their_state_under_the_module_names_of_now_and_then(is_zip: bool, tmp_path: Path) -> None:
    expected = old_meters()
    for module in ("fairseq.logging.meters", "fairseq.meters"):  # now, and in those releases
        torch.save(expected, tmp_path / "a.pt", _use_new_zipfile_serialization=LEGACY)
        content = (tmp_path / "a.pt").read_bytes().replace(b"fairseq.logging.meters\n", f"{module}\n".encode())
        (tmp_path / "a.pt").write_bytes(content)
        assert f"{module}\n".encode() in content
        found = load(tmp_path / "a.pt")
        assert list(found) == list(expected)
        assert all(vars(found[name]) == vars(meter) for name, meter in expected.items())

    state = metrics_of_bleu()
    found = saved_and_loaded(state, tmp_path / "b.pt", is_zip)
    metrics.reset()
    metrics.load_state_dict(found)
    assert metrics.get_meter("valid", "_bleu_counts").val.tolist() == [5, 4, 3, 2]
    metrics.log_scalar("loss", 1.0)
    metrics.reset()


def test_the_dictionary_of_a_speech_model(tmp_path: Path) -> None:
    found = saved_and_loaded({"dictionaries": [dictionary()]}, tmp_path / "a.pt")
    assert vars(found["dictionaries"][0]) == vars(dictionary())


def optimizer_states() -> List[Tuple[str, Any]]:
    states = []
    for name in ("adadelta", "adafactor", "adagrad", "adam", "adamax", "nag", "sgd"):
        parameters = [nn.Parameter(torch.arange(6.0).reshape(2, 3))]
        args = arguments("--optimizer", name, "--lr", "0.1")
        optimizer = optim.build_optimizer(convert_namespace_to_omegaconf(args).optimizer, parameters)
        parameters[0].sum().backward()
        optimizer.step()
        states.append((name, optimizer.state_dict()))
    return states


def scheduler_states() -> List[Tuple[str, Any]]:
    states = []
    for name in ("fixed", "inverse_sqrt", "polynomial_decay", "reduce_lr_on_plateau"):
        more = ("--total-num-update", "10") if name == "polynomial_decay" else ()
        args = arguments("--optimizer", "sgd", "--lr", "0.1", "--lr-scheduler", name, *more)
        cfg = convert_namespace_to_omegaconf(args)
        optimizer = optim.build_optimizer(cfg.optimizer, [nn.Parameter(torch.ones(2))])
        scheduler = lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, optimizer)
        scheduler.step(1, np.float64(2.5))
        states.append((name, scheduler.state_dict()))
    return states


@pytest.mark.slow
@pytest.mark.parametrize("states", [optimizer_states, scheduler_states], ids=["optimizers", "schedulers"])
def test_states_of_training(states: Any, tmp_path: Path) -> None:
    for name, state in states():
        found = saved_and_loaded(state, tmp_path / "a.pt")
        assert repr(found) == repr(state), name


@pytest.mark.parametrize("is_zip", [ZIP, LEGACY])
@pytest.mark.parametrize("kind", ["args", "dictionary", "configuration"])
def test_checkpoints_of_each_time(kind: str, is_zip: bool, tmp_path: Path) -> None:
    """fairseq kept its options as a namespace, then as its configuration object, then as a dictionary."""
    args = arguments("--adaptive-softmax-cutoff", "[4, 8]", "--lr", "0.0007")
    cfg = convert_namespace_to_omegaconf(args)
    state: Dict[str, Any] = {
        "model": {"weight": torch.ones(2)},
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {"best": 2.5}, "num_updates": 7}],
        "extra_state": {"train_iterator": {"epoch": 2}, "val_loss": np.float64(2.5)},
        "last_optimizer_state": {"state": {0: {"step": 7}}, "param_groups": [{"lr": 0.1}]},
    }
    if kind == "args":
        state["args"] = args
        state["extra_state"]["train_meters"] = old_meters()
    else:
        cfg = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True) if kind == "dictionary" else cfg
        state.update(args=None, cfg=cfg)
    torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=is_zip)
    found = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "a.pt"), {"data": "elsewhere"})
    assert isinstance(found["cfg"], DictConfig)
    assert found["cfg"].task.data == "elsewhere"
    assert found["cfg"].model.adaptive_softmax_cutoff == [4, 8]
    assert found["extra_state"]["train_iterator"]["epoch"] == 2
    assert torch.equal(found["model"]["weight"], torch.ones(2))


@pytest.mark.parametrize("name", ["rcg_transformer_tiny.pt", "transformer_tiny.pt"])
def test_checkpoints_of_the_classic_stack(name: str) -> None:
    state = load(CLASSIC / name, map_location="cpu")
    ((counts,),) = (
        [meter["val"] for _, key, _, meter in aggregator if key == "_bleu_counts"]
        for aggregator in state["extra_state"]["metrics"].values()
        if any(key == "_bleu_counts" for _, key, _, _ in aggregator)
    )
    assert isinstance(counts, np.ndarray)
    assert len(counts) == 4


@pytest.mark.parametrize("is_trusted", [False, True])
def test_tensors_are_loaded_to_the_device_that_is_asked_for(
    is_trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fairseq asks for the CPU, whatever device they were saved on."""
    asked: List[str] = []

    def to_the_cpu(storage: Any, location: str) -> Any:
        asked.append(location)
        return storage

    path = tmp_path / "a.pt"
    torch.save({"model": {"weight": torch.ones(2)}}, path)
    monkeypatch.setenv(TRUSTED, str(path) if is_trusted else "")
    assert torch.equal(load(path, map_location=to_the_cpu)["model"]["weight"], torch.ones(2))
    assert asked == ["cpu"]
