"""Checkpoints that run a program when they are loaded: it makes a folder."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import fairseq.utils
import torch
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION


class Call:
    """Unpickling this calls a function, and gives what that returns."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[Any, ...]]:
        return self.call


def dump(content: Any) -> bytes:
    """A pickle, as torch makes them."""
    return pickle.dumps(content, protocol=2)


def _text(text: str) -> bytes:
    """As a pickle has a text."""
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _program(folder: Path) -> str:
    return f"__import__('os').mkdir({str(folder)!r})"


# Pickles that make a folder, by how they do it.
PICKLES: Dict[str, Callable[[Path], bytes]] = {
    "a function": lambda folder: dump(Call(os.mkdir, str(folder))),
    "among the parameters": lambda folder: dump({"model": {"weight": Call(os.mkdir, str(folder))}}),
    "eval": lambda folder: dump(Call(eval, _program(folder))),
    "exec": lambda folder: dump(Call(exec, _program(folder))),
    "eval of fairseq": lambda folder: dump(Call(fairseq.utils.eval_str_list, _program(folder))),
    "a method": lambda folder: dump(Call(getattr, folder, "mkdir"))[:-1] + b")R.",
    "protocol 0": lambda folder: b"cposix\nmkdir\n(V" + str(folder).encode() + b"\ntR.",
    "an old instance": lambda folder: b"(V" + str(folder).encode() + b"\niposix\nmkdir\n.",
    "an old object": lambda folder: b"(cposix\nmkdir\n" + _text(str(folder)) + b"o.",
    "protocol 4": lambda folder: pickle.dumps(Call(os.mkdir, str(folder)), protocol=4),
    "a module of a module": lambda folder: (
        b"\x80\x04\x8c\x05torch\x8c\x16serialization.os.mkdir\x93" + _text(str(folder)) + b"\x85R."
    ),
    "a name of Python 2": lambda folder: b"\x80\x02c__builtin__\neval\n" + _text(_program(folder)) + b"\x85R.",
}


def in_zip(content: bytes) -> bytes:
    """torch's format since 1.6."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
    return file.getvalue()


def in_legacy(content: bytes) -> bytes:
    """torch's format before: pickles one after another."""
    first = (MAGIC_NUMBER, PROTOCOL_VERSION, {"little_endian": True})
    return b"".join([*map(dump, first), content, dump([])])


def in_tar(content: bytes) -> bytes:
    """torch's format before 0.2."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


# What a file is that has such a pickle in it.
FORMATS: Dict[str, Callable[[bytes], bytes]] = {
    "zip": in_zip,
    "legacy": in_legacy,
    "legacy, at its beginning": lambda content: content + dump(0),
    "legacy, in place of what it says of the machine": lambda content: (
        dump(MAGIC_NUMBER) + dump(PROTOCOL_VERSION) + content + dump({}) + dump([])
    ),
    "legacy, at its end": lambda content: in_legacy(dump({}))[: -len(dump([]))] + content,
    "tar": in_tar,
}
UNREADABLE: Dict[str, Callable[[bytes], bytes]] = {  # by any torch
    "gzip": lambda content: gzip.compress(in_legacy(content)),
    "a zip file in gzip": lambda content: gzip.compress(in_zip(content)),
}


def save_hostile(source: Path, target: Path, folder: Path, format_name: str) -> None:
    """A working checkpoint, which makes a folder besides; of the tar format, nothing but that."""
    if format_name == "tar":
        target.write_bytes(in_tar(PICKLES["a function"](folder)))
        return
    from fairseq_ctxgates.checkpoints.loading import load

    state = load(source, map_location="cpu")
    state["extra_state"]["more"] = Call(os.mkdir, str(folder))
    torch.save(state, target, _use_new_zipfile_serialization=format_name == "zip")
