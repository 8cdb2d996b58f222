"""Counts on a CPU what makes a GPU slow: how often the host waits for the device, and how many kernels it launches.

    python -m benchmarks.device_calls [--arch rcg_transformer ...] [--device cuda] [--json calls.json]

The counts are for the forward and the backward pass of one training step, and for one step of beam search, of each
architecture and of stock fairseq's ``transformer`` or ``lstm`` of the same depth. A *wait* is a call whose result
decides what the host does next: a number read from a tensor, a copy to the host, or an index or a result whose size
depends on values. A *launch* is a call of an ATen operator that is not a view. Both are counts of calls, and are the
same on every machine; kernels that a GPU fuses are not taken into account. Dropout, which is one kernel on a GPU and
several calls here, is left out. The script needs torch 2.0 or later.

With ``--device cuda`` the work is done on a GPU, and both counts are those of its driver's calls in torch's profiler.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections import Counter
from functools import partial
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch
from fairseq import utils
from fairseq.data import Dictionary, data_utils
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf
from tabulate import tabulate
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fairseq_ctxgates.models  # noqa: F401  registers the architectures
from fairseq_ctxgates.configuration import plain
from fairseq_ctxgates.inter_sentence.preceding_sentences import group_sentences
from fairseq_ctxgates.models.context_model import ContextModel
from fairseq_ctxgates.tasks.context_translation import ContextTranslationConfig, ContextTranslationTask
from fairseq_ctxgates.tasks.continuing_generator import CONTEXT, ContinuingGenerator


class System(NamedTuple):
    """A model and how it is used.

    Attributes:
        arch: its architecture
        options: the options of the model that differ from those of the architecture
        preceding: how many preceding sentences a batch has, if the model reads any
        continues: whether the translations continue those of the preceding sentences
    """

    arch: str
    options: Mapping[str, Any] = {}
    preceding: int = 1
    continues: bool = False


# For each architecture of fairseq, the architectures of ours that are compared with it.
ARCHITECTURES = {
    "transformer": ("context_transformer", "rcg_transformer", "isg_transformer", "fra_transformer", "car_transformer"),
    "transformer_align": ("context_transformer_align", "rcg_transformer_align", "isg_transformer_align"),
    "lstm": ("rnnsearch", "ctxgate_rnnsearch", "isg_rnnsearch", "car_rnnsearch"),
}
# Other uses of our architectures, by their names in the table.
SYSTEMS = {
    "isg_transformer, 3 sentences": System("isg_transformer", {"inter_sentence_context": 3}, preceding=3),
    "isg_rnnsearch, 3 sentences": System("isg_rnnsearch", {"inter_sentence_context": 3}, preceding=3),
    "context_transformer, after translations": System("context_transformer", continues=True),
    "rcg_transformer, after translations": System("rcg_transformer", continues=True),
}
LAYERS = 3
READS_VALUES = {
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero", "aten::equal"),
    *("aten::_unique2", "aten::unique_consecutive", "aten::unique_dim"),
}
INDEXES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
COPIES_TO_HOST = {Tensor.cpu, Tensor.tolist, Tensor.numpy}
MAKES_ON_HOST = {torch._shape_as_tensor, torch.tensor}  # shapes and Python numbers as tensors
NO_KERNEL = {
    *("aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided"),
    *("aten::_unsafe_view", "aten::promote_types"),
}


class Calls(NamedTuple):
    """How often the host waits for the device, and how many kernels it launches."""

    waits: int
    launches: int


class CallCounter(TorchDispatchMode):
    """Counts the calls of ATen operators in its ``with`` block. Tensors that are on the host even if the model is on a
    GPU are tracked through the operators: calls with only such tensors neither wait nor launch."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Tuple = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        inputs = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        result = func(*args, **(kwargs or {}))
        if inputs and all(map(is_host_tensor, inputs)):
            mark_as_host_tensors(result)
            return result
        self.waits += name in READS_VALUES or (name in INDEXES and any(map(is_mask, args[1])))
        is_view = any(output.alias_info and not output.alias_info.is_write for output in func._schema.returns)
        self.launches += not is_view and name not in NO_KERNEL
        return result


class CopyCounter(TorchFunctionMode):
    """Counts the copies from device to host in its ``with`` block, which call no operator on a CPU, and finds the
    tensors that are made on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def __torch_function__(self, func: Any, types: Any, args: Tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in COPIES_TO_HOST and not is_host_tensor(args[0]):
            self.waits += 1
            result = result.detach() if result is args[0] else result  # must not be the tensor on the device
            mark_as_host_tensors(result)
        if func in MAKES_ON_HOST and "device" not in (kwargs or {}):
            mark_as_host_tensors(result)
        return result


def is_mask(index: Optional[Tensor]) -> bool:
    """Whether the size of the result of indexing with this tensor depends on its values."""
    return index is not None and index.dtype == torch.bool


def is_host_tensor(tensor: Tensor) -> bool:
    """Whether the tensor is on the host even if the model is on a GPU."""
    return hasattr(tensor, "_is_on_host")


def mark_as_host_tensors(results: Any) -> None:
    """Make :func:`is_host_tensor` true for all tensors of a result."""
    for result in tree_leaves(results):
        if isinstance(result, Tensor):
            result._is_on_host = True  # type: ignore[attr-defined]


def count_on_cpu(run: Callable[[], Any]) -> Calls:
    """The calls that a function makes."""
    with CopyCounter() as copies, CallCounter() as operators:
        run()
    return Calls(copies.waits + operators.waits, operators.launches)


def count_on_gpu(run: Callable[[], Any]) -> Calls:
    """The calls of CUDA that a function makes."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
    calls = Counter(event.name for event in profile.events())
    return Calls(calls["cudaStreamSynchronize"], sum(calls[name] for name in calls if "LaunchKernel" in name))


class Step(NamedTuple):
    """The calls of a training step, forward and backward, and of a step of beam search."""

    forward: Calls
    backward: Calls
    decoding: Calls


def make_task(load_gate_labels: bool = False) -> ContextTranslationTask:
    """A task with a small dictionary."""
    dictionary = Dictionary()
    for index in range(20):
        dictionary.add_symbol(f"w{index}")
    options = ContextTranslationConfig(load_gate_labels=load_gate_labels, model_overrides="{}")
    return ContextTranslationTask(options, dictionary, dictionary)


def make_batch(dictionary: Dictionary, names: Collection[str], system: System) -> Dict[str, Any]:
    """Two sentence pairs of different lengths, with an unknown word and the inputs of these names."""
    pad, eos, unk = dictionary.pad(), dictionary.eos(), dictionary.unk()
    source = torch.tensor([[5, 6, unk, 8, eos], [pad, pad, 9, 10, eos]])
    before = [[[9, eos], [10, 11, eos], [7, 8, 9, eos]][-system.preceding :], [[eos, eos, eos]]]
    preceding = [torch.tensor([token for sentence in row for token in sentence]) for row in before]
    inputs: Dict[str, Any] = {
        "preceding_tokens": data_utils.collate_tokens(preceding, pad, left_pad=True),
        "relation_mask": torch.eye(5, dtype=torch.bool) | source.eq(pad).unsqueeze(2),
    }
    if system.preceding > 1:
        row_distances = [
            torch.tensor([len(row) - place for place, sentence in enumerate(row) for _ in sentence]) for row in before
        ]
        distances = data_utils.collate_tokens(row_distances, 0, left_pad=True)
        inputs.update(preceding_distances=distances, preceding_groups=group_sentences(distances))
    context = {CONTEXT: torch.tensor([[11, 12, eos], [13, eos, pad]])} if system.continues else {}
    return {
        **context,
        "nsentences": 2,
        "ntokens": 7,
        "net_input": {
            "src_tokens": source,
            "src_lengths": torch.tensor([5, 3]),
            "prev_output_tokens": torch.tensor([[eos, 11, 12, 13], [eos, 14, 15, pad]]),
            **{name: tensor for name, tensor in inputs.items() if name in names},
        },
        "target": torch.tensor([[11, 12, 13, eos], [14, 15, eos, pad]]),
        "gate_labels": torch.tensor([[1, 0, 1, 2], [0, 1, 2, 2]]),
    }


def count_step(name: str, layers: int = LAYERS, device: str = "cpu") -> Step:
    """The calls of a system, of an architecture of ours, or of one of fairseq's, with this number of decoder layers if
    the architecture has that option."""
    count = count_on_cpu if device == "cpu" else count_on_gpu
    system = SYSTEMS.get(name, System(name))
    arch = system.arch
    is_fairseqs = arch in ARCHITECTURES
    is_gated = not is_fairseqs and plain(MODEL_DATACLASS_REGISTRY[arch]().context_gate) != "none"
    task = make_task(is_gated)
    options: Dict[str, Any] = {"dropout": 0.0, **system.options}
    if "rnnsearch" not in arch:
        options.update(encoder_layers=LAYERS, decoder_layers=layers)
    if "align" in arch:
        options.update(alignment_layer=layers - 1)
    model = task.build_model(
        argparse.Namespace(arch=arch, criterion="", **options)
        if is_fairseqs
        else OmegaConf.create({"_name": arch, **options})
    ).to(device)
    loss = "gate_regularized_cross_entropy" if is_gated else "label_smoothed_cross_entropy"
    settings = {"_name": loss, "label_smoothing": 0.1, "sentence_avg": False}
    criterion = task.build_criterion(OmegaConf.create(settings))
    batch = make_batch(task.source_dictionary, getattr(model, "input_names", ()), system)
    batch = utils.apply_to_sample(lambda tensor: tensor.to(device), batch)
    losses: List[Tensor] = []
    forward = count(lambda: losses.append(criterion(model.train(), batch)[0]))
    backward = count(losses[0].backward)
    # Both searches end at the last step allowed. The longer one has one step more: the difference is one step.
    shorter, longer = (count(partial(search, model, task, batch, steps)) for steps in (6, 7))
    decoding = Calls(longer.waits - shorter.waits, longer.launches - shorter.launches)
    return Step(forward, backward, decoding)


def search(model: Any, task: ContextTranslationTask, batch: Dict[str, Any], steps: int) -> None:
    """Beam search of this number of steps, by the generator class of the model's task, with the model prepared as by
    ``fairseq-generate``."""
    build = ContinuingGenerator if isinstance(model, ContextModel) else SequenceGenerator
    model = copy.deepcopy(model).eval()
    model.make_generation_fast_(need_attn=False)
    generator = build([model], task.target_dictionary, beam_size=2, max_len_a=0, max_len_b=steps, min_len=steps)
    generator.generate([model], batch)


def main() -> None:
    """Print the table, and write the counts to ``--json`` if it is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", help="the architectures and systems (default: all, and stock's)")
    parser.add_argument("--device", default="cpu", help="cuda: count the calls of a GPU (default: %(default)s)")
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    names = args.arch or [*(name for stock, ours in ARCHITECTURES.items() for name in (stock, *ours)), *SYSTEMS]
    for name in names if args.device != "cpu" else []:
        count_step(name, device=args.device)  # what is done only once, on the first call, is not counted
    steps = {name: count_step(name, device=args.device) for name in names}
    head = ["", *(f"{part}: {what}" for part in Step._fields for what in Calls._fields)]
    print(tabulate([[name, *(figure for calls in step for figure in calls)] for name, step in steps.items()], head))
    if args.json:
        figures = {
            name: {part: calls._asdict() for part, calls in step._asdict().items()} for name, step in steps.items()
        }
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
