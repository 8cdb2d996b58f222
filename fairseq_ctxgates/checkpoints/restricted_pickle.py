"""A ``pickle_module`` for ``torch.load`` that makes only objects that fairseq's checkpoints hold.

It is for versions of torch whose ``weights_only`` cannot take such a list, and works like that of later versions: it
knows only the pickle operations that ``torch.save`` writes, and only the names in ``ALLOWED``.
"""

from __future__ import annotations

import pickle
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter, OrderedDict
from typing import Any, BinaryIO, Callable, Dict, Iterator, Tuple

import torch

from fairseq_ctxgates.checkpoints.contents import ALLOWED

OPERATIONS = (  # of protocol 2
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.GLOBAL, pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD),
    *(pickle.BINPERSID, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.LONG1, pickle.LONG4, pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINSTRING, pickle.BINSTRING),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
)


def _encode(text: str, encoding: str) -> bytes:
    """Replaces ``codecs.encode``, with which protocol 2 saves bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes are saved in the encoding {encoding!r}")
    return text.encode("latin1")


def _torch() -> Iterator[Tuple[str, Any]]:
    for kind in (torch.Tensor, torch.nn.Parameter, OrderedDict, Counter):
        yield f"{kind.__module__}.{kind.__qualname__}", kind
    yield "torch.Size", torch.Size
    yield "torch.device", torch.device
    for name, value in vars(torch).items():
        if isinstance(value, torch.dtype):
            yield f"torch.{name}", value
    for name in ("tensor", "tensor_v2", "parameter"):
        yield f"torch._utils._rebuild_{name}", getattr(torch._utils, f"_rebuild_{name}")
    if hasattr(torch._tensor, "_rebuild_from_type_v2"):  # torch 1.11
        yield "torch._tensor._rebuild_from_type_v2", torch._tensor._rebuild_from_type_v2
    yield "_codecs.encode", _encode


_NAMES: Dict[str, Any] = {**dict(_torch()), **ALLOWED}
_IDENTITIES = frozenset(map(id, _NAMES.values()))


class _Operations(Dict[int, Callable[["Unpickler"], None]]):
    def __missing__(self, operation: int) -> None:
        raise pickle.UnpicklingError(f"operation {operation} of pickle is not one that checkpoints are made of")


_PythonUnpickler: Any = vars(pickle)["_Unpickler"]  # the one written in Python, whose operations can be changed


class Unpickler(_PythonUnpickler):
    """Makes torch's tensors and what ``ALLOWED`` names; raises UnpicklingError for anything else."""

    dispatch = _Operations()
    for _operation in OPERATIONS:
        dispatch[_operation[0]] = _PythonUnpickler.dispatch[_operation[0]]

    def find_class(self, module: str, name: str) -> Any:
        """The class or function of a name, which may be a name from Python 2."""
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        try:
            return _NAMES[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not saved by fairseq") from None

    def _load_reduce(self) -> None:
        self._check(self.stack[-2])
        super().load_reduce()

    def _load_newobj(self) -> None:
        self._check(self.stack[-2])
        super().load_newobj()

    def _load_build(self) -> None:
        self._check(type(self.stack[-2]))
        super().load_build()

    def _load_persistent(self) -> None:
        # torch's old format also has classes with their source code, which torch compares and writes to files.
        identity = self.stack[-1]
        if not (type(identity) is tuple and identity and identity[0] in ("storage", b"storage")):
            raise pickle.UnpicklingError("something other than tensors is stored")
        super().load_binpersid()

    def _load_append(self) -> None:
        self._check_filled(self.stack[-2], list)
        super().load_append()

    def _load_appends(self) -> None:
        self._check_filled(self.metastack[-1][-1], list)
        super().load_appends()

    def _load_setitem(self) -> None:
        self._check_filled(self.stack[-3], dict, OrderedDict, Counter)
        super().load_setitem()

    def _load_setitems(self) -> None:
        self._check_filled(self.metastack[-1][-1], dict, OrderedDict, Counter)
        super().load_setitems()

    @staticmethod
    def _check_filled(container: Any, *kinds: type) -> None:
        if type(container) not in kinds:
            raise pickle.UnpicklingError(f"{type(container)} is filled, which is not done by fairseq's checkpoints")

    @staticmethod
    def _check(kind: Any) -> None:
        if id(kind) not in _IDENTITIES:
            raise pickle.UnpicklingError(f"{kind} is not called by fairseq's checkpoints")

    dispatch[pickle.REDUCE[0]] = _load_reduce
    dispatch[pickle.NEWOBJ[0]] = _load_newobj
    dispatch[pickle.BUILD[0]] = _load_build
    dispatch[pickle.BINPERSID[0]] = _load_persistent
    dispatch[pickle.APPEND[0]] = _load_append
    dispatch[pickle.APPENDS[0]] = _load_appends
    dispatch[pickle.SETITEM[0]] = _load_setitem
    dispatch[pickle.SETITEMS[0]] = _load_setitems


def load(file: BinaryIO, **options: Any) -> Any:
    """Load one pickle, as ``pickle.load``."""
    return Unpickler(file, **options).load()
