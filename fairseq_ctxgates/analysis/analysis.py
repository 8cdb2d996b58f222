"""The base class of the analyses. Each analysis defines its options and its run; the rest is done here."""

from __future__ import annotations

import argparse
import inspect
import logging
import warnings
from abc import ABC, abstractmethod
from typing import ClassVar, Optional, Sequence

from fairseq_ctxgates.analysis.report import Result, check_outputs
from fairseq_ctxgates.command_line import CommandParser


class Analysis(ABC):
    """An analysis of ``ctxgates analyze``. The docstring of a subclass is its description in the help text.

    Attributes:
        name: its name on the command line
        output_options: the options, without ``--``, that name files to write
        figures: those of them that name figures
        figure_options: the options that have an effect only with ``--figure`` or ``--html``
    """

    name: ClassVar[str]
    output_options: ClassVar[Sequence[str]] = ("json", "csv", "figure")
    figures: ClassVar[Sequence[str]] = ("figure",)
    figure_options: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def add_options(self, parser: CommandParser) -> None:
        """Add the analysis's options."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> Result:
        """Run the analysis.

        Raises:
            UserError: the options, or the files that they name, do not fit.
        """

    def get_parser(self) -> CommandParser:
        """The parser of the analysis's options."""
        parser = CommandParser(prog=f"ctxgates analyze {self.name}", description=inspect.getdoc(self))
        self.add_options(parser)
        drawing = [name for name in ("figure", "html") if name in self.output_options]
        parser.add_condition(
            " or ".join(f"--{name}" for name in drawing),
            lambda args: any(getattr(args, name) for name in drawing),
            *self.figure_options,
        )
        return parser

    def parse_args(self, argv: Optional[Sequence[str]]) -> argparse.Namespace:
        """The options of a command line; options that contradict each other end the program with status 2."""
        return self.get_parser().parse_args(argv)

    def main(self, argv: Optional[Sequence[str]] = None) -> None:
        """Run the analysis from the command line: print the result, and write the files that the options name."""
        args = self.parse_args(argv)
        quiet_logging()
        check_outputs(args, self.output_options, self.figures)
        result = self.run(args)
        try:
            print(result.text())
        finally:  # also if standard output cannot be written, for example because its reader has ended
            result.write(args)


def quiet_logging() -> None:
    """Log warnings only. fairseq sets the root logger to INFO or DEBUG, so that log messages would bury the tables."""
    logging.getLogger().setLevel(logging.WARNING)
    for message in ("pin_memory", "mismatched key_padding_mask"):  # about how fairseq calls torch
        warnings.filterwarnings("ignore", message=f".*{message}")
