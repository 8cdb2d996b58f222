"""Takes the options of one dataclass out of fairseq's configuration, and writes options as users give them."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Optional, Type, TypeVar

from fairseq.dataclass import FairseqDataclass

Options = TypeVar("Options", bound=FairseqDataclass)


def options_from(config: Type[Options], values: object) -> Options:
    """The options of a dataclass, from an object that has other options too; enumerations become plain strings."""
    given = {option.name: getattr(values, option.name) for option in fields(config) if option.name != "_name"}
    return config(**{name: plain(value) for name, value in given.items()})


def plain(value: object) -> object:
    """An option's value; a fairseq ``ChoiceEnum`` value becomes its string, because forks of fairseq call string
    methods on it."""
    return str(value) if isinstance(value, Enum) else value


def from_text(config: Type[FairseqDataclass], option: str, text: Optional[str]) -> object:
    """The inverse of ``str`` for the value of a dataclass's option: a number, a switch, or text. None is None."""
    (kind,) = (known.type for known in fields(config) if known.name == option)
    if text is None:
        return None
    for number in (int, float):
        if kind in (number, Optional[number]):
            return number(text)
    return text == "True" if kind in (bool, Optional[bool]) else text


def as_flag(option: str) -> str:
    """An option as users write it: ``relation_lambda`` is ``--relation-lambda``."""
    return "--" + option.replace("_", "-")


def as_given(option: str, value: object) -> str:
    """An option and its value as users write them: ``--relation-lambda 0.3``; a switch is its name alone."""
    return as_flag(option) if value is True or value == "True" else f"{as_flag(option)} {value}"
