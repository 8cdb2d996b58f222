"""No checkpoint runs a program or damages memory, by any path that loads one, in any format, on any fairseq."""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import pickle
import re
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

import fairseq
import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, hub_utils
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig
from omegaconf import OmegaConf

import ctxgates
from fairseq_ctxgates.checkpoints.evaluated_options import EVALUATED, check_options
from fairseq_ctxgates.checkpoints.in_fairseq import torch_of_checkpoints
from fairseq_ctxgates.checkpoints.loading import TRUSTED, load
from fairseq_ctxgates.compat import meters
from fairseq_ctxgates.errors import UserError
from tests.helpers.fairseq_commands import GATED, PLAIN, TASK, USER_DIR, generate, interactive, run, train
from tests.helpers.fairseq_commands import TRAINING as FEW_UPDATES
from tests.helpers.hostile_checkpoints import FORMATS, PICKLES, UNREADABLE, Call, dump, in_legacy, in_zip, save_hostile

CLASSIC = Path(__file__).parent.parent / "data" / "classic"
DATA = CLASSIC / "data-bin"
CHECKPOINT = CLASSIC / "rcg_transformer_tiny.pt"
STOCK = CLASSIC / "transformer_tiny.pt"
SIZE = (
    *("--encoder-embed-dim", "24", "--encoder-ffn-embed-dim", "24", "--encoder-layers", "1", "--share-all-embeddings"),
    *("--decoder-embed-dim", "24", "--decoder-ffn-embed-dim", "24", "--decoder-layers", "2"),
)
STEP = ("--max-update", "1", "--valid-subset", "test", "--disable-validation")
TRAINING = (*GATED, *SIZE, *STEP)
BATCH = ("--batch-size", "8", "--num-workers", "0", "--cpu")
MAP = 'map_location=torch.device("cpu"))'


@pytest.fixture(params=["fairseq as installed", "fairseq's main branch"])
def any_fairseq(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main branch is as the one installed, but for what it asks torch: not to protect it."""
    if request.param == "fairseq's main branch":
        source = inspect.getsource(checkpoint_utils.load_checkpoint_to_cpu)
        assert MAP in source
        source = source.replace(MAP, f"{MAP[:-1]}, weights_only=False)")
        namespace: Dict[str, Any] = {}
        exec(compile(source, checkpoint_utils.__file__, "exec"), checkpoint_utils.__dict__, namespace)
        monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", namespace["load_checkpoint_to_cpu"])


def refuses(checkpoint: Path) -> Any:
    return pytest.raises(UserError, match=re.escape(f"{checkpoint} is damaged, or holds what fairseq does not put"))


def from_hub(checkpoint: Path) -> Any:
    return hub_utils.from_pretrained(str(checkpoint.parent), checkpoint.name, str(DATA), user_dir=USER_DIR)


def analyze(checkpoint: Path) -> None:
    ctxgates.main(["analyze", "gates", str(DATA), "--gen-subset", "test", "--path", str(checkpoint), "--cpu"])


def average(checkpoint: Path) -> None:
    average = checkpoint.with_name("average.pt")
    ctxgates.main(["average-checkpoints", "--inputs", str(checkpoint), "--output", str(average)])


# What loads a checkpoint.
USES: Dict[str, Callable[[Path], Any]] = {
    "generate": lambda path: generate(DATA, path),
    "generate, an ensemble": lambda path: generate(DATA, f"{CHECKPOINT}:{path}"),
    "interactive": lambda path: interactive(DATA, path, ["q1 q2"], path.parent, "--beam", "1", "--cpu"),
    "validate": lambda path: run("validate", DATA, *TASK, "--path", path, "--valid-subset", "test", *BATCH),
    "a stock model": lambda path: run(
        "generate", DATA, "--user-dir", USER_DIR, "--path", path, "-s", "de", "-t", "en", *BATCH
    ),
    "going on": lambda path: train(DATA, path.parent / "new", *TRAINING, "--restore-file", path),
    "fine-tuning": lambda path: train(DATA, path.parent / "new", *TRAINING, "--finetune-from-model", path),
    "a warm start": lambda path: train(DATA, path.parent / "new", *TRAINING, "--warm-start", path),
    "torch.hub": from_hub,
    "the moving average": lambda path: checkpoint_utils.load_ema_from_checkpoint(str(path)),
    "analyze": analyze,
    "average-checkpoints": average,
}


@pytest.mark.slow  # all of them together
@pytest.mark.usefixtures("any_fairseq")
@pytest.mark.parametrize("format_name", ["zip", "legacy", "tar"])
@pytest.mark.parametrize("use", USES)
def test_no_use_of_a_checkpoint_runs_it(
    use: str, format_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, made = tmp_path / "checkpoint.pt", tmp_path / "made"
    save_hostile(CHECKPOINT, checkpoint, made, format_name)
    if use in ("analyze", "average-checkpoints"):
        with pytest.raises(SystemExit):
            USES[use](checkpoint)
        assert capsys.readouterr().err.startswith(f"error: {checkpoint} is damaged, or holds what fairseq does not put")
    else:
        with refuses(checkpoint):
            USES[use](checkpoint)
    assert not made.exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"checkpoint.pt", "new", "input"}


def test_a_cut_checkpoint_of_a_resumed_training_names_the_option_for_another(tmp_path: Path) -> None:
    last = tmp_path / "checkpoint_last.pt"
    last.write_bytes(CHECKPOINT.read_bytes()[:-1])
    with pytest.raises(UserError, match="checkpoint_last.pt is damaged .*: name another checkpoint, by --restore-file"):
        load(last)


@pytest.mark.parametrize("cfg", [3, "model", [1], {}, None])
def test_what_are_no_options_is_left_for_fairseq_to_refuse(cfg: object, tmp_path: Path) -> None:
    torch.save({"cfg": cfg, "args": None, "model": {}}, tmp_path / "checkpoint.pt")
    assert torch_of_checkpoints.load(tmp_path / "checkpoint.pt")["cfg"] == cfg
    assert torch_of_checkpoints.last_options is None


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a model and a task of fairseq's own."""
    folder = tmp_path_factory.mktemp("stock")
    run("train", DATA, "-s", "de", "-t", "en", *FEW_UPDATES, *PLAIN, *SIZE, *STEP, "--save-dir", folder)
    return folder / "checkpoint_last.pt"


@pytest.mark.slow  # all of them together
@pytest.mark.parametrize("use", sorted(set(USES) - {"the moving average", "going on"}))
def test_a_harmless_checkpoint_is_used(use: str, stock: Path, tmp_path: Path) -> None:
    """So what the uses above refuse is the program."""
    checkpoint = tmp_path / "checkpoint.pt"
    source = {"a stock model": stock, "a warm start": STOCK}.get(use, CHECKPOINT)
    checkpoint.write_bytes(source.read_bytes())
    USES[use](checkpoint)


@pytest.mark.usefixtures("any_fairseq")
@pytest.mark.parametrize("format_name", [*FORMATS, *UNREADABLE])
@pytest.mark.parametrize("kind", PICKLES)
def test_no_pickle_runs(kind: str, format_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, made = tmp_path / "checkpoint.pt", tmp_path / "made"
    checkpoint.write_bytes({**FORMATS, **UNREADABLE}[format_name](PICKLES[kind](made)))
    for loading in (checkpoint_utils.load_checkpoint_to_cpu, load):
        with refuses(checkpoint):
            loading(str(checkpoint))
    assert not made.exists()

    monkeypatch.setenv(TRUSTED, str(checkpoint))
    with suppress(Exception):
        load(checkpoint)
    assert made.exists() == (format_name in FORMATS), "it is harmless"


def test_a_program_of_torchscript_is_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "program.pt"))
    with refuses(tmp_path / "program.pt"):
        load(tmp_path / "program.pt")


def test_sources_of_classes_are_refused(tmp_path: Path) -> None:
    """Which torch's old format may hold, and which torch then writes to files."""
    identity = dump(("module", argparse.Namespace, "a.py", "class Namespace: ..."))[2:-1]
    (tmp_path / "a.pt").write_bytes(in_legacy(b"\x80\x02" + identity + b"Q."))
    with refuses(tmp_path / "a.pt"):
        load(tmp_path / "a.pt")


class Filled:
    """Unpickling this makes an object, and sets its states, one after another."""

    def __init__(self, function: Callable[..., Any], arguments: Any, *states: Any) -> None:
        self.function, self.arguments, self.states = function, arguments, states

    def dump(self) -> bytes:
        """Its pickle."""
        content = b"".join(dump(state)[2:-1] + b"b" for state in self.states)
        return dump(Call(self.function, *self.arguments))[:-1] + content + b"."


RECONSTRUCT: Any
EMPTY: Any
RECONSTRUCT, EMPTY, _ = tuple(np.zeros(0).__reduce__())
SCALAR: Any = np.float64(1).__reduce__()[0]
POINTERS = b"A" * 32
FLOATS = (1, (4,), np.dtype("f8"), False, POINTERS)
MEMORY: Dict[str, bytes] = {
    "an array of pointers": dump(Call(np.ndarray, (4,), np.dtype("O"), POINTERS)),
    "an array that is called": dump(Call(np.ndarray, (4,), np.dtype("f8"), POINTERS)),
    "an array of new pointers": b"\x80\x02cnumpy\nndarray\n" + dump(((4,), "O", POINTERS))[2:-1] + b"\x81.",
    "an array of objects": dump(np.array([None, 1], dtype=object)),
    "an array of texts": dump(np.array(["a", "b"])),
    "a number that is a pointer": dump(Call(SCALAR, np.dtype("O"), POINTERS[:8])),
    "a number that is too long": dump(Call(SCALAR, np.dtype("f4"), POINTERS)),
    "a number that is too short": dump(Call(SCALAR, np.dtype("f8"), b"A")),
    "fields": dump(np.zeros(2, dtype=[("a", "f8"), ("b", "O")])),
    "a type with a state of its own": Filled(
        np.dtype, ("f8", False, True), (3, "<", None, None, None, 64, 8, 63)
    ).dump(),
    "a type with fields": Filled(
        np.dtype, ("V8", False, True), (3, "|", None, ("a",), {"a": (np.dtype("O"), 1 << 40)}, 8, 1, 27)
    ).dump(),
    "more bytes than numbers": Filled(RECONSTRUCT, EMPTY, (1, (3,), np.dtype("f8"), False, POINTERS)).dump(),
    "more numbers than bytes": Filled(RECONSTRUCT, EMPTY, (1, (1 << 40,), np.dtype("f8"), False, POINTERS)).dump(),
    "a shape below zero": Filled(RECONSTRUCT, EMPTY, (1, (-1, -4), np.dtype("f8"), False, POINTERS)).dump(),
    "a product that is too large": Filled(
        RECONSTRUCT, EMPTY, (1, (1 << 32, 1 << 32, 1 << 32), np.dtype("f8"), False, b"")
    ).dump(),
    "an array that is filled again": Filled(RECONSTRUCT, EMPTY, FLOATS, FLOATS).dump(),
    "an array of another class": dump(np.ma.zeros(3)),
    "an array that is one of the files": Filled(RECONSTRUCT, (np.memmap, (0,), b"b"), FLOATS).dump(),
}


@pytest.mark.parametrize("in_format", [in_zip, in_legacy])
@pytest.mark.parametrize("content", MEMORY.values(), ids=MEMORY)
def test_memory_stays_whole(content: bytes, in_format: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(in_format(content))
    with refuses(tmp_path / "a.pt"):
        load(tmp_path / "a.pt")


def test_numpy_itself_takes_any_pointer() -> None:
    """So what is refused above is not harmless."""
    assert pickle.loads(MEMORY["an array of pointers"]).dtype == object
    assert pickle.loads(MEMORY["an array of new pointers"]).dtype == object


def test_what_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and all in folders that the environment variable names, and nothing beside them."""
    (tmp_path / "mine").mkdir()
    mine, yours, link = tmp_path / "mine" / "a.pt", tmp_path / "yours.pt", tmp_path / "mine" / "yours.pt"
    for path in (mine, yours):
        torch.save(Call(len, path.name), path)
    link.symlink_to(yours)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "at 10:30.pt").write_bytes(mine.read_bytes())
    with pytest.raises(UserError, match=f"set {TRUSTED}='.*/at 10:30.pt'"):
        load(tmp_path / "at 10:30.pt")
    monkeypatch.setenv(TRUSTED, str(tmp_path / "at 10:30.pt"))
    assert load(tmp_path / "at 10:30.pt") == 4
    for trusted in ("mine", str(tmp_path / "mine"), f"nowhere{os.pathsep}{mine}", "mine/a.pt", "mine/../mine"):
        monkeypatch.setenv(TRUSTED, trusted)
        assert load(mine) == 4
        for other in (yours, link):  # the file that a link names is the one that is trusted or not
            with refuses(other):
                load(other)
    deep = tmp_path / "mine" / "run" / "a.pt"
    deep.parent.mkdir()
    deep.write_bytes(mine.read_bytes())
    monkeypatch.setenv(TRUSTED, "mine")
    assert load(deep) == 4
    for trusted in ("", os.pathsep, "min", "1", str(tmp_path / "mine" / "b.pt")):
        monkeypatch.setenv(TRUSTED, trusted)
        with refuses(mine):
            load(mine)


# --- options that fairseq evaluates -----------------------------------------------------------------------------------

PROGRAM = "[__import__('os').mkdir('made')] and [4, 8]"


def options_with(name: str, value: Any) -> Iterator[Dict[str, Any]]:
    """The options of a checkpoint, in every form that fairseq has saved them in."""
    yield {"args": argparse.Namespace(**{name: value})}
    yield {"cfg": {"model": argparse.Namespace(**{name: value})}}
    yield {"cfg": {"model": {name: value}}}
    yield {"cfg": OmegaConf.create({"model": {"decoder": [{name: value}]}})}
    yield {"args": argparse.Namespace(w2v_args=argparse.Namespace(**{name: value}))}


@pytest.mark.parametrize("name", sorted(EVALUATED))
def test_programs_among_the_options_are_refused(name: str, tmp_path: Path) -> None:
    """Also what OmegaConf would replace by one."""
    for value in (PROGRAM, " " + PROGRAM, "(lambda: 1)()", "[x for x in ()]", "f'{1}'", "${common.x}", "a.b", "["):
        for state in options_with(name, value):
            torch.save(state, tmp_path / "a.pt")
            with refuses(tmp_path / "a.pt"):
                load(tmp_path / "a.pt")
    for harmless in (
        None,
        6,
        "6",
        "[4, 8]",
        "(0.9, 0.98)",
        "[(512, 3)] * 20 + [(512, -2)]",
        "True",
        [1, 2],
        "{'a': 1}",
    ):
        for state in options_with(name, harmless):
            torch.save(state, tmp_path / "a.pt")
            assert load(tmp_path / "a.pt") == state
    with pytest.raises(pickle.UnpicklingError):
        check_options({"args": argparse.Namespace(**{name: PROGRAM.encode()})})


@pytest.mark.parametrize("value", ["${oc.decode:'{a: 1}'}", "${oc.${create}:a}", "${${x}:a}", "a ${oc.create:b}"])
def test_what_omegaconf_would_compute_is_refused(value: str, tmp_path: Path) -> None:
    for state in options_with("anything", value):
        torch.save(state, tmp_path / "a.pt")
        with refuses(tmp_path / "a.pt"):
            load(tmp_path / "a.pt")
    for harmless in ("${common.seed}", "${env:HOME}/log", "${oc.env:HOME,there}", "${now:%Y-%m-%d}", "$HOME", "{}"):
        for state in options_with("anything", harmless):
            torch.save(state, tmp_path / "a.pt")
            load(tmp_path / "a.pt")


@pytest.mark.parametrize("kind", [meters.AverageMeter, meters.StopwatchMeter, meters.TimeMeter, Dictionary])
def test_no_object_but_a_namespace_has_options(kind: Any, tmp_path: Path) -> None:
    """fairseq would take the attributes of a meter for options."""
    made = kind()
    made.encoder_layers = PROGRAM
    for state in ({"args": made}, {"cfg": {"model": made}}, {"args": argparse.Namespace(w2v_args=[made])}):
        torch.save(state, tmp_path / "a.pt")
        with refuses(tmp_path / "a.pt"):
            load(tmp_path / "a.pt")


@pytest.mark.parametrize("name", ["adaptive_softmax_cutoff", "encoder_xformers_att_config"])
def test_an_option_that_fairseq_evaluates(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint without a foreign object, whose program runs where it is trusted."""
    state = load(STOCK, map_location="cpu")
    setattr(state["cfg"]["model"], name, PROGRAM)
    torch.save(state, tmp_path / "checkpoint.pt")
    monkeypatch.chdir(tmp_path)
    with refuses(tmp_path / "checkpoint.pt"):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "checkpoint.pt")], {"data": str(DATA)})
    assert not Path("made").exists()

    monkeypatch.setenv(TRUSTED, str(tmp_path))
    with suppress(Exception):
        checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "checkpoint.pt")], {"data": str(DATA)})
    assert Path("made").exists(), "it is harmless"


NO_OPTIONS = {"x", "uf", "line"}  # words of a command line, and lines of a file


@pytest.mark.slow
def test_every_option_that_fairseq_evaluates_is_known() -> None:
    """Of the fairseq at hand: what it gives to ``eval``, or to its functions that do."""
    calls = re.compile(r"eval|(utils\.)?eval_(str_list|str_dict|bool)")
    evaluated = set()
    sources = [path.read_text(encoding="utf-8") for path in Path(fairseq.__file__).parent.rglob("*.py")]
    for source in sources:
        for node in ast.walk(ast.parse(source)) if re.search(r"eval\w*\(\w+", source) else ():
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], (ast.Attribute, ast.Name)):
                value = node.args[0]
                if calls.fullmatch(ast.get_source_segment(source, node.func) or ""):
                    evaluated.add(value.attr if isinstance(value, ast.Attribute) else value.id)
    assert {"adaptive_softmax_cutoff", "encoder_layers", "xformers_att_config"} <= evaluated
    assert evaluated - NO_OPTIONS <= EVALUATED
    # Those of an encoder and a decoder, under the names that checkpoints have for them.
    config = TransformerConfig()
    of_sides = {(side, field.name) for side in ("encoder", "decoder") for field in fields(getattr(config, side))}
    assert {f"{side}_{name}" for side, name in of_sides if name in evaluated} <= EVALUATED
