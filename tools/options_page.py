"""Prints ``docs/options.md``: every option of the plugin, from the dataclasses and the commands' parsers.

python tools/options_page.py >docs/options.md
"""

from __future__ import annotations

import argparse
import enum
import re
from dataclasses import Field, fields
from importlib import import_module
from typing import Any, Dict, Iterator, List, Sequence, Tuple, Type

from fairseq.dataclass import FairseqDataclass

import ctxgates
import fairseq_ctxgates.models  # noqa: F401  registers the architectures
from fairseq_ctxgates import analysis
from fairseq_ctxgates.configuration import as_flag, as_given, plain
from fairseq_ctxgates.context_gates.gate_regularized_cross_entropy import GateRegularizedCrossEntropyConfig
from fairseq_ctxgates.mechanism import RNNSEARCH, TRANSFORMER
from fairseq_ctxgates.mechanisms import all_mechanisms
from fairseq_ctxgates.models import context_transformer, context_transformer_align, rnnsearch
from fairseq_ctxgates.models.transformer_config import DecoderNormOrderConfig
from fairseq_ctxgates.models.warm_start import WarmStartConfig
from fairseq_ctxgates.tasks.task_streams import STREAMS

INTRODUCTION = """# Options

Made from the code by `python tools/options_page.py`. fairseq's own options are not listed.

An option that the model, the task or the command would not read is refused before any work is done, with a line that
says what the option needs. In a YAML file for `fairseq-hydra-train` names have underscores: `--gate-lambda 0.5` is
`gate_lambda: 0.5` in the group `criterion`."""

BACKBONES = {TRANSFORMER: "Transformer", RNNSEARCH: "RNNSearch"}
PLAIN = {TRANSFORMER: "context_transformer", RNNSEARCH: "rnnsearch"}
SIZES = {
    TRANSFORMER: (*context_transformer.SIZES, *context_transformer_align.ALIGNED_SIZES),
    RNNSEARCH: tuple(rnnsearch.SIZES),
}


def page() -> str:
    """The text of the whole page."""
    parts = [INTRODUCTION]
    parts += ["## Architectures", *architectures()]
    parts += ["## Model", *model_options()]
    parts += ["## Criterion `gate_regularized_cross_entropy`", config_table(GateRegularizedCrossEntropyConfig)]
    parts += ["## Task `context_translation`", *stream_options()]
    parts += ["## Commands", *command_options()]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the text of a cell may have any character."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def architectures() -> Iterator[str]:
    """The names for ``--arch``, with the defaults that each sets."""
    rows = []
    for backbone, plain_name in PLAIN.items():
        rows.append([f"`{plain_name}`", BACKBONES[backbone], "every mechanism off"])
        for mechanism in all_mechanisms():
            for name, defaults in mechanism.architectures.get(backbone, {}).items():
                rows.append([f"`{name}`", BACKBONES[backbone], flags(defaults)])
    yield table(["`--arch`", "backbone", "sets"], rows)
    for backbone, sizes in SIZES.items():
        yield f"On {BACKBONES[backbone]} a name may end in " + ", ".join(f"`{size}`" for size in sizes if size) + "."


def flags(defaults: Any) -> str:
    """Options and their values as they are given on the command line."""
    return " ".join(f"`{as_given(name, value)}`" for name, value in defaults.items())


def model_options() -> Iterator[str]:
    """The options of the mechanisms, and of the models themselves."""
    for mechanism in all_mechanisms():
        configs: Dict[Type[FairseqDataclass], List[str]] = {}
        for backbone, config in mechanism.configs.items():
            configs.setdefault(config, []).append(BACKBONES[backbone])
        for config, backbones in configs.items():
            yield f"### {title(mechanism)} ({', '.join(backbones)})"
            yield config_table(config)
    yield "### Transformer"
    yield config_table(DecoderNormOrderConfig, WarmStartConfig)
    yield "### Transformer that learns alignments (`_align`)"
    yield config_table(context_transformer_align.AlignmentConfig)
    yield "### RNNSearch"
    yield config_table(rnnsearch.PlainRNNSearchConfig)


def stream_options() -> Iterator[str]:
    """The options of the side streams."""
    configs: Dict[Type[FairseqDataclass], List[str]] = {}
    for stream in STREAMS:
        configs.setdefault(stream.Config, []).append(title(stream))
    for config, titles in configs.items():
        yield f"### {', '.join(titles).capitalize()}"
        yield config_table(config)


def title(named: type) -> str:
    """The name of a class as words."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", named.__name__).capitalize()


def config_table(*configs: Type[FairseqDataclass]) -> str:
    """The options of dataclasses, without those of fairseq's classes that they extend."""
    rows = []
    for config in configs:
        own = [base for base in config.__mro__ if base.__module__.startswith("fairseq_ctxgates")]
        names = [name for base in own for name in vars(base).get("__annotations__", {})]
        rows += [field_row(option) for option in fields(config) if option.name in names]
    return table(["option", "default", ""], rows)


def field_row(option: Field) -> Tuple[str, str, str]:
    """A row of a table: the option with its values, the default, the help text."""
    kind = getattr(option.type, "__args__", (option.type,))[0]  # of Optional[...]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        values = " " + "|".join(str(choice.value) for choice in kind)
    else:
        values = "" if kind is bool else " " + getattr(kind, "__name__", str(kind)).upper()
    return f"`{as_flag(option.name)}{values}`", default_text(plain(option.default)), option.metadata.get("help", "")


def default_text(value: object) -> str:
    """A default as it would be given; empty if the option is off or another option decides."""
    return "" if value is False or value in (None, "", [], argparse.SUPPRESS) else f"`{value}`"


def command_options() -> Iterator[str]:
    """The options of each command of ``ctxgates``, and of each analysis."""
    for name, (module, summary) in ctxgates.COMMANDS.items():
        if name == "analyze":
            continue
        yield f"### `ctxgates {name}`"
        yield f"{summary[0].upper()}{summary[1:]}."
        if module != "ctxgates":
            yield parser_table(import_module(module).get_parser())
    for name, (_, summary) in analysis.ANALYSES.items():
        yield f"### `ctxgates analyze {name}`"
        yield f"{summary[0].upper()}{summary[1:]}."
        yield parser_table(analysis.get_analysis(name).get_parser())


def parser_table(parser: argparse.ArgumentParser) -> str:
    """The arguments of a parser."""
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help is argparse.SUPPRESS:
            continue
        names = ", ".join(action.option_strings)
        name = action.dest.upper() if action.option_strings else action.dest
        values = parser._get_formatter()._format_args(action, name)
        rows.append([f"`{' '.join(filter(None, (names, values)))}`", default_text(action.default), help_text(action)])
    return table(["option", "default", ""], rows)


def help_text(action: argparse.Action) -> str:
    """What ``--help`` says about an argument, without its default, which has a column of its own."""
    text = (action.help or "").replace(" (default: %(default)s)", "")
    return text.replace("%(default)s", str(action.default)).replace("%%", "%")


if __name__ == "__main__":
    print(page(), end="")
