"""What fairseq puts into checkpoints besides tensors.

A checkpoint is a pickle, which names functions and classes that are called when it is loaded. ``ALLOWED`` has those
that fairseq's checkpoints name, from its first releases on. None of them does more than make an object from data.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import pickle
import re
import typing
from collections import defaultdict
from typing import Any, Dict, Iterator, NoReturn, Tuple

import numpy as np
import omegaconf
from fairseq.data import Dictionary

from fairseq_ctxgates.compat import meters, multilingual_utils

# Real and complex numbers, integers and truth values.
NUMBER_TYPES = re.compile(r"b1|[iu][1248]|f[248]|c8|c16")


class NumberType:
    """Replaces ``np.dtype`` in arrays and numbers, and allows only types of plain numbers.

    The state of an ``np.dtype`` says how memory is read, possibly as pointers, and NumPy accepts any state.
    """

    __slots__ = ("dtype",)  # and no __dict__: no other object can be made into one by setting its __class__

    def __init__(self, code: str, align: bool = False, copy: bool = False) -> None:
        if not (isinstance(code, str) and NUMBER_TYPES.fullmatch(code)):
            raise pickle.UnpicklingError(f"NumPy's type {code!r} is not one of plain numbers")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Tuple[Any, ...]) -> None:
        version, byte_order, *rest = state
        if byte_order not in ("<", ">", "=", "|") or rest != [None, None, None, -1, -1, 0]:
            raise pickle.UnpicklingError(f"NumPy's type {self.dtype} has the state {state}")
        self.dtype = self.dtype.newbyteorder(byte_order)


class NumberArray(np.ndarray):
    """Replaces ``np.ndarray``: an array that only :func:`empty_array` makes, and that is filled with numbers once.

    ``np.ndarray`` itself would make arrays of pointers from the bytes that it is given.
    """

    _is_filled = False

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise pickle.UnpicklingError("np.ndarray is called, but arrays are not saved that way")

    def __setstate__(self, state: Tuple[Any, ...]) -> None:
        version, shape, kind, is_fortran, content = state
        if not (type(kind) is NumberType and type(content) is bytes and is_shape(shape)):
            raise pickle.UnpicklingError("an array is not of plain numbers")
        if self._is_filled or len(content) != math.prod(shape) * kind.dtype.itemsize:
            raise pickle.UnpicklingError(f"an array of shape {shape} is filled with {len(content)} bytes")
        self._is_filled = True
        super().__setstate__((version, shape, kind.dtype, is_fortran, content))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)  # it is saved like any other array


def is_shape(shape: Any) -> bool:
    """Whether this is the shape of an array: a tuple of integers from 0."""
    return type(shape) is tuple and all(type(length) is int and length >= 0 for length in shape)


def empty_array(kind: Any, shape: Any, code: Any) -> NumberArray:
    """Replaces ``numpy.core.multiarray._reconstruct``: an array that is still to be filled."""
    if kind is not NumberArray:
        raise pickle.UnpicklingError(f"an array is made as {kind}")
    return np.ndarray.__new__(NumberArray, (0,), np.int8)


def scalar(kind: Any, content: Any) -> np.generic:
    """Replaces ``numpy.core.multiarray.scalar``: a number."""
    if not (type(kind) is NumberType and type(content) is bytes and len(content) == kind.dtype.itemsize):
        raise pickle.UnpicklingError("a NumPy number is malformed")
    scalar: np.generic = np.frombuffer(content, kind.dtype)[0]
    return scalar


def _numpy() -> Iterator[Tuple[str, Any]]:
    yield "numpy.ndarray", NumberArray
    yield "numpy.dtype", NumberType
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # NumPy 1 and 2
        yield f"{module}._reconstruct", empty_array
        yield f"{module}.scalar", scalar


def _fairseq() -> Iterator[Tuple[str, Any]]:
    """fairseq's own classes: its options before Hydra, the meters of its first releases, the dictionaries of speech
    models, and choices."""
    yield "argparse.Namespace", argparse.Namespace
    for meter in (meters.AverageMeter, meters.StopwatchMeter, meters.TimeMeter):
        yield f"fairseq.meters.{meter.__name__}", meter
        yield f"fairseq.logging.meters.{meter.__name__}", meter
    for kind in (
        Dictionary,
        multilingual_utils.EncoderLangtok,
        multilingual_utils.LangTokSpec,
        multilingual_utils.LangTokStyle,
    ):
        yield f"{kind.__module__}.{kind.__qualname__}", kind


def _omegaconf() -> Iterator[Tuple[str, Any]]:
    """OmegaConf's configurations. fairseq saved them as such for a while, and as dictionaries before and after."""
    nodes = [kind for kind in vars(omegaconf.nodes).values() if isinstance(kind, type)]
    nodes = [kind for kind in nodes if issubclass(kind, omegaconf.nodes.ValueNode)]
    base = (omegaconf.base.Metadata, omegaconf.base.ContainerMetadata)
    for kind in (omegaconf.DictConfig, omegaconf.ListConfig, *base, *nodes):
        yield f"{kind.__module__}.{kind.__qualname__}", kind
    for name in ("Any", "Dict", "List", "Tuple", "Union"):
        yield f"typing.{name}", getattr(typing, name)


def _python() -> Iterator[Tuple[str, Any]]:
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset):
        yield f"builtins.{kind.__name__}", kind
    yield "collections.defaultdict", defaultdict
    for module in ("pathlib", "pathlib._local"):  # from Python 3.13 on
        yield f"{module}.PosixPath", pathlib.PosixPath


# The full name in a pickle: what it becomes on loading.
ALLOWED: Dict[str, Any] = dict([*_numpy(), *_fairseq(), *_omegaconf(), *_python()])
