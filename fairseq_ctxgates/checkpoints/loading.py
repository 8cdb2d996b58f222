"""``torch.load`` for fairseq's checkpoints, without running code that they hold."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import shlex
import tarfile
from argparse import Namespace
from pathlib import Path
from typing import Any, BinaryIO, Dict, Mapping, Union

import torch

from fairseq_ctxgates.checkpoints import restricted_pickle
from fairseq_ctxgates.checkpoints.contents import ALLOWED
from fairseq_ctxgates.checkpoints.evaluated_options import check_options
from fairseq_ctxgates.errors import UserError, one_line

TRUSTED = "CTXGATES_TRUSTED_CHECKPOINTS"  # the environment variable: files and folders, as in PATH

# torch 2.6 can be restricted to what is on a list. Earlier versions accepted any class, or had a list that could not
# name functions, or had no list.
RESTRICTED: Dict[str, Any]
if hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):
    torch.serialization.add_safe_globals([(value, name) for name, value in ALLOWED.items()])
    RESTRICTED = {"weights_only": True}
else:
    RESTRICTED = {"pickle_module": restricted_pickle}
UNRESTRICTED = {"weights_only": False} if "weights_only" in inspect.signature(torch.load).parameters else {}


def load(file: Union[str, Path, BinaryIO], map_location: Any = None, **options: Any) -> Any:
    """Load a checkpoint as ``torch.load`` does, but only what fairseq puts there.

    Args:
        options: options of ``torch.load``, which are ignored: fairseq's main branch asks for ``weights_only=False``

    Raises:
        UserError: the file is damaged, or holds something else, and the environment variable ``TRUSTED`` does not
            name it
        OSError: the file cannot be opened
    """
    if isinstance(file, (str, Path)):
        with open(file, "rb") as opened:
            return load(opened, map_location)
    name = getattr(file, "name", None)
    if not isinstance(name, str):  # a file in memory, or a descriptor
        name = "the checkpoint"
    elif _is_trusted(Path(name)):
        return torch.load(file, map_location=map_location, **UNRESTRICTED)
    try:
        _check_format(file)
        state = torch.load(file, map_location=map_location, **{**UNRESTRICTED, **RESTRICTED})
        check_options(state)
        return state
    except (OSError, EOFError, RuntimeError) as error:  # torch's, for a file that is truncated
        reason = one_line(error).partition(". ")[0] or "it is cut"  # without torch's explanations
        how = ", by --restore-file if it is to resume training" if Path(name).name.startswith("checkpoint_last") else ""
        raise UserError(f"{name} is damaged ({reason}): name another checkpoint{how}") from error
    except Exception as error:  # a function called with unsuitable arguments may raise anything
        raise UserError(
            f"{name} is damaged, or holds what fairseq does not put into checkpoints, and is refused, because loading "
            f"it can run any program ({_reason(error)}); where you trust the file, set {TRUSTED}={shlex.quote(name)}"
        ) from error


def load_checkpoint(path: Path) -> Dict[str, Any]:
    """Load a checkpoint to the CPU as :func:`load` does, and check that it is one of fairseq.

    Raises:
        UserError: the file cannot be read, is damaged or refused, or has no parameters (``"model"``)
    """
    try:
        state = load(path, map_location="cpu")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; name a checkpoint") from error
    model = state.get("model") if isinstance(state, dict) else None
    if not (isinstance(model, dict) and all(isinstance(value, torch.Tensor) for value in model.values())):
        raise UserError(f'{path} is not a checkpoint of fairseq: it has no parameters ("model")')
    return state


def options_of(checkpoint: Mapping[str, Any]) -> object:
    """The options of a checkpoint's model, as attributes; any version of fairseq may have saved it."""
    groups = checkpoint.get("cfg")
    options = groups.get("model") if groups and isinstance(groups, Mapping) else checkpoint.get("args")
    return Namespace(**options) if isinstance(options, Mapping) else options


def _is_trusted(path: Path) -> bool:
    path = path.resolve()
    value = os.environ.get(TRUSTED, "")
    # The whole value too: the name of a single file may contain a colon.
    trusted = [Path(entry).resolve() for entry in (value, *value.split(os.pathsep)) if entry]
    return any(entry == path or entry in path.parents for entry in trusted)


def _check_format(file: BinaryIO) -> None:
    """Raise UnpicklingError for checkpoint formats that torch does not load as one pickle."""
    start = file.tell()
    if torch.serialization._is_zipfile(file):
        with torch.serialization._open_zipfile_reader(file) as reader:
            if torch.serialization._is_torchscript_zip(reader):
                raise pickle.UnpicklingError("it is a program of TorchScript")
    else:
        try:
            tarfile.open(fileobj=file, mode="r:").close()
        except tarfile.TarError:
            pass
        else:
            raise pickle.UnpicklingError("it has the tar format of torch before 0.2")
    file.seek(start)


def _reason(error: Exception) -> str:
    """An error in one line, without torch's advice on how to lift the protection."""
    text = " ".join(str(error).split())
    found = re.fullmatch(r"(?:.*(?:trusted source\.|WeightsUnpickler error:))?(.*?)(?: (?:Please|Check the) .*)?", text)
    return (found[1] if found else text).strip()
