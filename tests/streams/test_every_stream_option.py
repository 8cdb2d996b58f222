"""Every option of every side stream does something or is refused, in each of fairseq's commands.

Streams and options come from the mechanisms, so that a new one is tested without a line here: given to an architecture
with another value than its default, the losses or the translations differ from those without the option, or it is
refused.
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Tuple

import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset
from omegaconf import OmegaConf

from fairseq_ctxgates.data.data_directory import find_splits
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations.extraction.build import ExtractionOptions, ServerOptions
from fairseq_ctxgates.relations.mask import pack_tuples
from fairseq_ctxgates.tasks.task_streams import STREAMS
from tests.helpers.documents import interactive_lines
from tests.helpers.extractors import StubExtractor, in_place_of_parsers
from tests.helpers.fairseq_commands import setup_task, write_relations
from tests.helpers.options import ARCHITECTURES, other_values

pytestmark = pytest.mark.slow

# Where the value of tests/helpers/options.py would mean nothing.
VALUES: Dict[str, List[Any]] = {
    "preceding_length_ratio": [2.0],
    "preceding_max_length": [4],
    "concatenate_preceding": ["</s>"],
    "concatenate_number": [2],
    "concatenate_target_number": [2],
    "relation_extractor": ["known"],
    "relation_language": ["other"],
    "corenlp_url": ["http://localhost:9000"],
}
ASKED_FOR = "the architecture asks for the stream by itself"
# What changes nothing and is not refused, with the reason: a command (or all), an architecture, an option and a value.
ISG = ("isg_transformer_tiny", "isg_transformer_align_tiny", "isg_rnnsearch_tiny")
FRA = ("fra_transformer_tiny", "fra_transformer_align_tiny")
SAME: Dict[Tuple[str, str, str, Any], str] = {
    **{("all", arch, "load_preceding_sentences", True): ASKED_FOR for arch in ISG},
    **{("all", arch, "load_relations", True): ASKED_FOR for arch in FRA},
    **{("all", arch, "preceding_context", "own"): "what the default is" for arch in ISG},
    **{("interactive", arch, "preceding_context", "shifted"): "lines have their own, with a warning" for arch in ISG},
    **{("all", arch, "relation_mask", "pair"): "what the default is" for arch in FRA},
    **{
        ("interactive", arch, "relation_mask", mask): "without an extractor no line has relations"
        for arch in FRA
        for mask in ("word", "shifted")
    },
}
# A command in which an option does something, and what it needs beside it.
CONCATENATED = {"concatenate_preceding": "</s>"}
WITH_TARGETS = {**CONCATENATED, "concatenate_preceding_target": True}
BESIDE: List[Tuple[str, str, str, Dict[str, Any]]] = [
    *(
        ("interactive", arch, option, {"relation_extractor": "known"})
        for arch in FRA
        for option in ("corenlp_url", "relation_language", "relation_mask")
    ),
    ("generate", "context_transformer_tiny", "concatenate_number", CONCATENATED),
    ("generate", "context_transformer_tiny", "concatenate_preceding_target", CONCATENATED),
    ("generate", "context_transformer_tiny", "concatenate_target_number", WITH_TARGETS),
    ("generate", "context_transformer_tiny", "preceding_references", WITH_TARGETS),
    ("train", "context_transformer_tiny", "ignore_preceding_target", WITH_TARGETS),
]
Case = Tuple[str, str, str, Any]


@pytest.fixture(scope="module")
def data(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with every stream."""
    copy = Path(shutil.copytree(documents, tmp_path_factory.mktemp("streams") / "data"))
    for split in find_splits(copy, "de", "en"):
        sources: MMapIndexedDataset = split.load_language("de")
        write_relations(copy, split.name, [pack_tuples(tuples_of(len(source) - 1)) for source in sources])
    return copy


def tuples_of(words: int) -> List[List[int]]:
    """The relations of a sentence: its first two words, and the two after them."""
    return [[first, first + 1] for first in (0, 2) if first + 1 < words]


@pytest.fixture(autouse=True)
def _extractor() -> Iterator[None]:
    """Extractors find :func:`tuples_of`, those with a server or of another language only the first tuple."""

    def make(options: ExtractionOptions, servers: ServerOptions) -> StubExtractor:
        number = 1 if servers.urls or options.language == "other" else 2
        return StubExtractor(lambda words: tuples_of(len(words))[:number])

    with in_place_of_parsers(make):
        yield


# What the commands of fairseq do with a task, from the options on.


def build(arch: str, task: Any, from_checkpoint: bool) -> Any:
    torch.manual_seed(1)
    return task.build_model(OmegaConf.create({"_name": arch, "share_all_embeddings": True}), from_checkpoint).eval()


def losses(task: Any, model: Any, split: str, **load: Any) -> List[Any]:
    """The losses of the batches and what is logged; with context gates, of their regularizer too."""
    gates = {"_name": "gate_regularized_cross_entropy", "gate_lambda": 0}
    has_gates = model.layers_that_return("context_gates")
    cfg = {**(gates if has_gates else {"_name": "label_smoothed_cross_entropy"}), "label_smoothing": 0.1}
    criterion = task.build_criterion(OmegaConf.create({**cfg, "sentence_avg": False})).eval()
    task.load_dataset(split, **load)
    with torch.no_grad():
        found = [criterion(model, batch) for batch in batches(task, task.dataset(split))]
    return [(loss.item(), size, {key: float(value) for key, value in log.items()}) for loss, size, log in found]


def batches(task: Any, dataset: Any) -> Iterable[Dict[str, Any]]:
    return task.get_batch_iterator(dataset, max_sentences=8).next_epoch_itr(shuffle=False)


def translate(task: Any, model: Any, found: Iterable[Dict[str, Any]]) -> List[Any]:
    generator = task.build_generator([model], Namespace(beam=1, max_len_a=0, max_len_b=6))
    hypotheses = [best for batch in found for best, *_ in task.inference_step(generator, [model], batch)]
    return [(best["tokens"].tolist(), best["score"].item()) for best in hypotheses]


def train(data: Path, arch: str, **options: Any) -> List[Any]:
    task = setup_task(data, **{"load_gate_labels": False, **options})
    return losses(task, build(arch, task, from_checkpoint=False), "train")


def validate(data: Path, arch: str, **options: Any) -> List[Any]:
    """fairseq-validate, which has the options from the checkpoint; from the command line they come as overrides."""
    task = setup_task(data, **{"load_gate_labels": False, "model_overrides": str(options), **options})
    return losses(task, build(arch, task, from_checkpoint=True), "valid", task_cfg=None)


def generate(data: Path, arch: str, **options: Any) -> List[Any]:
    task = setup_task(data, **{"load_gate_labels": False, **options})
    model = build(arch, task, from_checkpoint=True)
    task.load_dataset("test", task_cfg=None)
    return translate(task, model, batches(task, task.dataset("test")))


def interactive(data: Path, arch: str, **options: Any) -> List[Any]:
    task = setup_task(data, **{"load_gate_labels": False, **options})
    model = build(arch, task, from_checkpoint=True)
    dataset = task.build_dataset_for_inference(*task.get_interactive_tokens_and_lengths(interactive_lines(), str))
    return translate(task, model, batches(task, dataset))


COMMANDS: Dict[str, Callable[..., List[Any]]] = {
    "train": train,
    "validate": validate,
    "generate": generate,
    "interactive": interactive,
}


# The options


def cases() -> Iterator[Case]:
    """Each option of each stream in each command, on each architecture."""
    configs = dict.fromkeys(stream.Config for stream in STREAMS)
    options = [option for config in configs for option in fields(config) if option.name != "_name"]
    for command in COMMANDS:
        for arch in ARCHITECTURES:
            for option in options:
                for value in VALUES.get(option.name, other_values(option)):
                    yield command, arch, option.name, value


@pytest.fixture(scope="module")
def without(data: Path) -> Callable[[str, str], List[Any]]:
    """What a command gives without the option, computed once."""
    found: Dict[Tuple[str, str], List[Any]] = {}

    def compute(command: str, arch: str) -> List[Any]:
        if (command, arch) not in found:
            found[command, arch] = COMMANDS[command](data, arch)
        return found[command, arch]

    return compute


@pytest.mark.parametrize(("command", "arch", "option", "value"), list(cases()))
def test_it_does_something_or_is_refused(
    data: Path, without: Callable[[str, str], List[Any]], command: str, arch: str, option: str, value: Any
) -> None:
    try:
        found = COMMANDS[command](data, arch, **{option: value})
    except UserError as error:
        named = f"--{option.replace('_', '-')}", option, *(f"stream {stream.name!r}" for stream in STREAMS)
        assert any(name in str(error) for name in named)
        return
    is_exception = not SAME.keys().isdisjoint({(command, arch, option, value), ("all", arch, option, value)})
    assert (found == without(command, arch)) == is_exception


@pytest.mark.parametrize("option", sorted({case[2] for case in cases()} - {option for _, _, option, _ in BESIDE}))
def test_some_command_takes_it(data: Path, option: str) -> None:
    def is_taken(command: str, arch: str, value: Any) -> bool:
        try:
            COMMANDS[command](data, arch, **{option: value})
        except UserError:
            return False
        return True

    assert any(is_taken(command, arch, value) for command, arch, name, value in cases() if name == option)


@pytest.mark.parametrize(("command", "arch", "option", "beside"), BESIDE)
def test_what_does_nothing_alone_works_with_what_it_needs(
    data: Path, command: str, arch: str, option: str, beside: Dict[str, Any]
) -> None:
    field, *_ = (field for stream in STREAMS for field in fields(stream.Config) if field.name == option)
    run = COMMANDS[command]
    changed = [run(data, arch, **beside, **{option: value}) for value in VALUES.get(option, other_values(field))]
    assert any(found != run(data, arch, **beside) for found in changed)


def test_every_exception_is_a_case() -> None:
    every = {case for found in cases() for case in (found, ("all", *found[1:]))}
    assert SAME.keys() <= every
