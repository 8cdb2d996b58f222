"""What the models of both backbones share: their mechanisms, and the forward pass."""

from __future__ import annotations

import argparse
import logging
from types import MappingProxyType
from typing import Any, ClassVar, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from torch import Tensor, nn

from fairseq_ctxgates.compat import gen_parser_from_dataclass, is_obsolete
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.mechanism import Mechanism
from fairseq_ctxgates.models.input_options import InputOptions, find_needs
from fairseq_ctxgates.models.mechanism_parts import EncoderOut
from fairseq_ctxgates.modules.attention import IncrementalState
from fairseq_ctxgates.parts import Part

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Mechanism)
Extra = Dict[str, Any]  # what a decoder returns beside its features


class ContextDecoder(FairseqIncrementalDecoder):
    """A decoder that can leave positions out of its output layer, and returns what its parts return.

    A subclass defines ``extract_features``, and ``returnable``: for each layer, from 1 at the bottom, the names of the
    gates and attention weights that its parts can return.
    """

    returnable: Dict[int, Tuple[str, ...]]

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[IncrementalState] = None,
        features_only: bool = False,
        output_positions: Optional[Tensor] = None,
        **arguments: object,
    ) -> Tuple[Tensor, Extra]:
        """
        Args:
            prev_output_tokens: (batch, target length); with an incremental state, only the last one is decoded
            encoder_out: from the encoder
            features_only: leave out the output layer
            output_positions: (P,), the only target positions that go through the output layer, numbered through the
                sentences of the batch one after another
            arguments: for ``extract_features``

        Returns:
            logits, (batch, target length, vocabulary) or (P, vocabulary), and the dictionary of ``extract_features``
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state, **arguments)
        if output_positions is not None:
            x = x.flatten(0, 1).index_select(0, output_positions)
        return (x if features_only else self.output_layer(x)), extra


class ContextModel(FairseqEncoderDecoderModel):
    """A translation model with the mechanisms that its options turn on.

    A subclass sets ``mechanisms`` and ``Config``; its encoder takes the inputs of side streams by keyword, its decoder
    is a :class:`ContextDecoder`.
    """

    Config: ClassVar[Type[FairseqDataclass]]
    mechanisms: Tuple[Mechanism, ...]
    # The checkpoint of --warm-start, until it, or a checkpoint of the model itself, is loaded.
    pending_warm_start: Optional[str] = None
    # The checkpoint of --warm-start after it has been loaded.
    warm_started_from: Optional[str] = None
    # What the task context_translation keeps in the model's checkpoints.
    input_options: Optional[InputOptions] = None
    # The options that would do nothing, see Mechanism.unread_options.
    unread_options: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add the architectures' options to the command line. Defaults come from each preset; a parser default would
        turn a preset's store_true flag into store_false."""
        gen_parser_from_dataclass(parser, cls.Config(), delete_default=True)

    def forward(
        self, src_tokens: Tensor, src_lengths: Optional[Tensor], prev_output_tokens: Tensor, **arguments: object
    ) -> Tuple[Tensor, Extra]:
        """
        Args:
            src_tokens: (batch, source length)
            src_lengths: (batch,)
            prev_output_tokens: (batch, target length)
            arguments: the inputs of side streams for the encoder, by name; all else is for the decoder

        Returns:
            logits, (batch, target length, vocabulary), and the dictionary of the decoder
        """
        if self.training:
            self.check_training()
        inputs = {name: arguments.pop(name) for name in self.input_names if name in arguments}
        return_all_hiddens = arguments.pop("return_all_hiddens", True)
        encoder_out = self.encoder(src_tokens, src_lengths, return_all_hiddens=return_all_hiddens, **inputs)
        return self.decode(prev_output_tokens, encoder_out, **arguments)

    def decode(self, prev_output_tokens: Tensor, encoder_out: EncoderOut, **arguments: object) -> Tuple[Tensor, Extra]:
        """Run the decoder, all positions at once; see :class:`ContextDecoder`."""
        decoded: Tuple[Tensor, Extra] = self.decoder(prev_output_tokens, encoder_out=encoder_out, **arguments)
        return decoded

    def check_training(self) -> None:
        """Raise UserError if an option of training has had no effect."""
        if self.pending_warm_start:
            raise UserError(f"--warm-start {self.pending_warm_start}: give --task context_translation, which loads it")
        self.refuse_unread_options()

    def refuse_unread_options(self) -> None:
        """Raise UserError if an option was given that would do nothing, for the first one."""
        for message in self.unread_options.values():
            raise UserError(message)

    def load_state_dict(self, state_dict: Dict[str, Tensor], *arguments: object, **options: object) -> object:
        """As fairseq's; a loaded model needs no warm start.

        Raises:
            UserError: the checkpoint's model reads other input than the task gives; or it lacks parameters of the
                mechanisms, or has further ones; or an option would do nothing, and the task is fairseq's, which does
                not check this.
        """
        if self.input_options is None:
            for entry in find_needs(state_dict):
                raise UserError(f"the model of this checkpoint {entry}")
            self.refuse_unread_options()
        self.pending_warm_start = None
        if self.warm_started_from:
            logger.info(f"other parameters take the place of those of --warm-start {self.warm_started_from}")
            self.warm_started_from = None
        try:
            return super().load_state_dict(state_dict, *arguments, **options)
        except RuntimeError as error:  # fairseq reports that the architectures do not match
            self._explain_misfit(state_dict, error)
            raise

    def _explain_misfit(self, state_dict: Mapping[str, Tensor], error: RuntimeError) -> None:
        """Raise UserError if a checkpoint lacks only parameters of the mechanisms, or has only further parameters."""
        parameters, mechanism_parameters = self.state_dict(), self.mechanism_parameters()
        for side, table in (("source", "encoder.embed_tokens.weight"), ("target", "decoder.embed_tokens.weight")):
            types = [len(found[table]) for found in (state_dict, parameters) if table in found]
            if len(set(types)) > 1:
                raise UserError(
                    f"the checkpoint's model was trained with {types[0]:,} {side} types, and the {side} dictionary of "
                    f"the data has {types[1]:,}: give the data directory that it was trained on, or one that was "
                    f"binarized with its dictionaries"
                ) from error
        missing, unknown, reshaped = find_misfits(state_dict, parameters)
        if missing and mechanism_parameters.keys() >= {*missing} and not (unknown or reshaped):
            names = ", ".join(mechanism.name for mechanism in self.mechanisms)
            which = f"no parameters of {names}" if len(missing) == len(mechanism_parameters) else f"no {missing[0]}"
            raise UserError(
                f"the checkpoint's model has {which}: to start from it, give --warm-start CHECKPOINT and a new "
                f"--save-dir, and not --finetune-from-model or --restore-file"
            ) from error
        if unknown and not (missing or reshaped):
            raise UserError(
                f"the checkpoint's model has {unknown[0]}, which this model does not have: give the options that it "
                f"was trained with, also in --model-overrides, or, to train another model, another --save-dir"
            ) from error

    @property
    def input_names(self) -> Tuple[str, ...]:
        """The names of the inputs that the side streams of the model's mechanisms add to a batch."""
        streams = [stream for mechanism in self.mechanisms for stream in mechanism.streams]
        return tuple(name for stream in streams for name in stream.inputs)

    @property
    def required_streams(self) -> Tuple[str, ...]:
        """The names of the side streams that the model's input needs."""
        return tuple(name for mechanism in self.mechanisms for name in mechanism.required_streams)

    @property
    def context_size(self) -> int:
        """The number of preceding sentences in a row of the model's input; also 1 if the model reads none."""
        return max([1, *(mechanism.context_size for mechanism in self.mechanisms)])

    @property
    def unread_streams(self) -> Tuple[str, ...]:
        """The names of the side streams that an ablation leaves unread; options of training may still ask for them."""
        return tuple(name for mechanism in self.mechanisms for name in mechanism.unread_streams)

    def mechanism(self, kind: Type[M]) -> M:
        """The model's mechanism of this class; the model must have one."""
        return next(mechanism for mechanism in self.mechanisms if isinstance(mechanism, kind))

    def check_task(self, task: object) -> None:
        """Raise UserError unless the task can load the side streams that the model requires."""
        if self.required_streams and not hasattr(task, "streams"):
            raise UserError(
                f"this architecture reads side streams ({', '.join(self.required_streams)}): give --task "
                f"context_translation, which loads them"
            )

    def check_training_data(self, splits: Sequence[Split]) -> None:
        """Log warnings about data that do not have what a mechanism learns from."""
        for mechanism in self.mechanisms:
            mechanism.check_training_data(splits)

    def layers_that_return(self, name: str) -> Tuple[int, ...]:
        """The decoder layers, from 1 at the bottom, with a part that can return gates or attention of this name."""
        return tuple(layer for layer, names in self.decoder.returnable.items() if name in names)

    def mechanism_parameters(self) -> Dict[str, Optional[str]]:
        """The mechanisms' own parameters, which a plain model's checkpoint does not have: for each name, the name of
        the parameter that it copies in a warm start, or None."""
        sources: Dict[str, Optional[str]] = {}
        modules = dict(self.named_modules())
        for path, part in modules.items():
            if isinstance(part, Part):
                host = _parent(modules, path)
                for name in part.state_dict(keep_vars=True):
                    sources[f"{path}.{name}"] = _warm_start_source(part, name, host)
        return sources


class Misfits(NamedTuple):
    """The names of the parameters that a checkpoint lacks, that only it has, and that have another shape in it."""

    missing: List[str]
    unknown: List[str]
    reshaped: List[str]


def find_misfits(state: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Misfits:
    """What hinders a checkpoint's parameters from being loaded as those of a model."""
    return Misfits(
        missing=[name for name in parameters if name not in state],
        unknown=[name for name in state if name not in parameters and not is_obsolete(name)],
        reshaped=[name for name in parameters if name in state and parameters[name].shape != state[name].shape],
    )


def _parent(modules: Mapping[str, nn.Module], path: str) -> str:
    """The path of the module that a part stands in; containers of parts do not count."""
    parent = path.rpartition(".")[0]
    return _parent(modules, parent) if isinstance(modules[parent], (nn.ModuleDict, nn.ModuleList)) else parent


def _warm_start_source(part: Part, parameter: str, host: str) -> Optional[str]:
    """The name of the parameter that a part's parameter copies in a warm start, or None."""
    for module, source in part.warm_start_source.items():
        if parameter.startswith(f"{module}."):
            return f"{host}.{source}{parameter[len(module) :]}"
    return None
