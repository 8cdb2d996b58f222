"""The translation task with side streams."""

import ast
import functools
import logging
import math
from dataclasses import dataclass, make_dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import AbstractSet, Any, Callable, Dict, List, Optional, Sequence, Tuple

from fairseq import utils
from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary, FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.tasks import register_task
from omegaconf import II
from torch import Tensor

from fairseq_ctxgates.allocator import keep_freed_memory
from fairseq_ctxgates.checkpoints.in_fairseq import torch_of_checkpoints
from fairseq_ctxgates.compat import SequenceScorer, TranslationConfig, TranslationTask, distributed_utils
from fairseq_ctxgates.configuration import as_flag, as_given
from fairseq_ctxgates.data.data_directory import Split
from fairseq_ctxgates.data.side_stream_dataset import SideStreamDataset
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.models.context_model import ContextModel
from fairseq_ctxgates.models.input_options import InputOptions
from fairseq_ctxgates.models.kept_options import find_change
from fairseq_ctxgates.models.warm_start import warm_start
from fairseq_ctxgates.tasks.alignments import AlignmentGenerator, wanted_alignment
from fairseq_ctxgates.tasks.continuing_generator import ContinuingGenerator
from fairseq_ctxgates.tasks.interactive_lines import InteractiveLines, LineDataset
from fairseq_ctxgates.tasks.loader_workers import LoaderWorkers
from fairseq_ctxgates.tasks.model_overrides import ModelOptions, refuse_unread_overrides
from fairseq_ctxgates.tasks.saved_options import SavedOptions
from fairseq_ctxgates.tasks.task_streams import (
    CRITERION_OPTIONS,
    INTERACTIVE_OPTIONS,
    SAVED_OPTIONS,
    STREAMS,
    TRAINING_OPTIONS,
    TRANSLATION_OPTIONS,
    TaskStreams,
    task_option_names,
)
from fairseq_ctxgates.tasks.translation_pass import NO_ALIGNMENT, TranslationPass

logger = logging.getLogger(__name__)


@dataclass
class _OwnConfig(TranslationConfig):
    # These values come from other groups of the configuration; they are not options of the task.
    path: Optional[str] = II("common_eval.path")
    model_overrides: str = II("common_eval.model_overrides")
    post_process: Optional[str] = II("common_eval.post_process")
    finetune_from_model: Optional[str] = II("checkpoint.finetune_from_model")
    reset_optimizer: bool = II("checkpoint.reset_optimizer")
    save_dir: str = II("checkpoint.save_dir")
    seed: int = II("common.seed")
    valid_subset: str = II("dataset.valid_subset")
    disable_validation: bool = II("dataset.disable_validation")


ContextTranslationConfig = make_dataclass(
    "ContextTranslationConfig", [], bases=(*dict.fromkeys(stream.Config for stream in STREAMS), _OwnConfig)
)
_DEFAULTS = ContextTranslationConfig()


@register_task("context_translation", dataclass=ContextTranslationConfig)
class ContextTranslationTask(TranslationTask):
    """Translation (fairseq's task and its options) with the side streams that the options ask for.

    The streams lie in the data directory beside source and target; see :mod:`fairseq_ctxgates.data.side_stream`.
    """

    def __init__(self, cfg: FairseqDataclass, src_dict: Dictionary, tgt_dict: Dictionary) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self._models: List[BaseFairseqModel] = []
        self.streams = TaskStreams(cfg, self._models)
        self._trains = False  # whether the last model was built to be trained
        self._has_criterion = False  # whether the command is fairseq-train or fairseq-validate
        self._model_cfg: Optional[FairseqDataclass] = None  # of the last model
        self._model_options: List[ModelOptions] = []
        self._training_data: Optional[FairseqDataset] = None
        self._saved_options = SavedOptions(cfg, ContextTranslationConfig, SAVED_OPTIONS)
        self._loads: Dict[str, Callable[[], None]] = {}  # how splits other than train were loaded
        self._workers = LoaderWorkers()
        self._lines = InteractiveLines()
        self._pass = TranslationPass()  # the current pass

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split as fairseq does, and join the side streams to it.

        Raises:
            UserError: a stream is missing, or does not fit the data.
        """
        keep_freed_memory()
        self._refuse_given(INTERACTIVE_OPTIONS, "fairseq-interactive")
        # Outside of training, fairseq passes the options of training as task_cfg.
        is_train = split == self.cfg.train_subset and "task_cfg" not in kwargs
        if is_train:
            self._check_not_validated_on(split)
            self._go_on_as_trained()
            if self._training_data is None:  # only before the first epoch
                turns = range(1, len(utils.split_paths(self.cfg.data)) + 1)
                self.streams.check_directories([part for turn in turns for part in self._parts(split, turn, combine)])
        else:
            self._loads[split] = functools.partial(self.load_dataset, split, epoch, combine, **kwargs)
        parts = self._parts(split, epoch if is_train else 1, combine)
        if self.streams.wanted():
            for part in parts:  # otherwise fairseq fails on a damaged file with an error that does not name it
                for lang in (self.cfg.source_lang, self.cfg.target_lang):
                    if lang == self.cfg.source_lang or part.has(lang):
                        part.load_language(lang)
        super().load_dataset(split, epoch, combine, **kwargs)
        if is_train and self._training_data is None and distributed_utils.get_global_rank() == 0:
            for model in self.streams.models:
                model.check_training_data(parts)
        self.datasets[split] = self.streams.join_to(self.datasets[split], parts, split, is_train)
        if is_train:
            self._training_data = self.datasets[split]

    def _check_not_validated_on(self, split: str) -> None:
        """Raise UserError if the model would be trained and validated on the same split: fairseq has one dataset for
        both, in which streams leave out some sentences and change others at random."""
        if self.streams.wanted() and not self.cfg.disable_validation and split in self.cfg.valid_subset.split(","):
            raise UserError(
                f"--valid-subset {self.cfg.valid_subset} names the split that is trained on, whose side streams "
                f"validation would read as training does: leave {split} out, and score it with fairseq-validate"
            )

    def _go_on_as_trained(self) -> None:
        """If fairseq has loaded a checkpoint to train on from, give its model the input that it was trained on, unless
        the options say otherwise. By then fairseq has loaded the validation data, so these are loaded again.

        Raises:
            UserError: training is resumed with options that contradict the checkpoint.
        """
        options = self._models[-1].input_options if self._models else None
        if options is None or options.loaded is None:
            return
        before, trained, options.loaded = self.streams.input_options(), options.loaded, None
        self._saved_options.go_on_with(trained)
        if not (self.cfg.reset_optimizer or self._is_fine_tuning_new()):
            self._saved_options.check_as_trained(self.streams.input_options(), trained)
            self._check_computes_as_trained()
        options.values = self.streams.input_options()
        if options.values != before:
            taken = (as_given(name, value) for name, value in options.values.items() if value is not None)
            logger.info(f"training continues with {' and '.join(taken)}, as the checkpoint was trained")
            self._check_options()
            for load in list(self._loads.values()):
                load()

    def _check_computes_as_trained(self) -> None:
        """Raise UserError if a resumed training has options with which its model would no longer be the same. Only the
        process that reads the checkpoint can tell."""
        for model in self.streams.models:
            change = find_change(torch_of_checkpoints.last_options, self._model_cfg, model.mechanisms)
            if change is not None:
                raise UserError(
                    f"the checkpoint was {change}: give the same to continue that training, or begin a new training "
                    f"from that model with --finetune-from-model"
                )

    def _is_fine_tuning_new(self) -> bool:
        """Whether the training begins from the model of ``--finetune-from-model``: where its own checkpoint exists,
        fairseq resumes it, and the option does nothing."""
        is_resumed = any(Path(self.cfg.save_dir).glob("checkpoint_last*.pt"))
        return bool(self.cfg.finetune_from_model) and not is_resumed

    @property
    def _is_translating(self) -> bool:
        """Whether the task is that of fairseq-generate or fairseq-interactive. They and fairseq-validate are given
        ``--path`` as an option that the task can see, and fairseq-validate alone of these builds a criterion."""
        return bool(self.cfg.path) and not self._has_criterion

    def _refuse_given(self, names: AbstractSet[str], command: str) -> None:
        """Raise UserError if one of these options, which are for another command, is given."""
        for name in sorted(names):
            if getattr(self.cfg, name) != getattr(_DEFAULTS, name):
                raise UserError(f"{as_flag(name)} is for {command}: here it would do nothing, leave it out")

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint keeps of the task: the options that its model's input depends on."""
        return {**super().state_dict(), **self.streams.input_options()}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Give a checkpoint's model the input that it was trained on, unless the options say otherwise. fairseq calls
        this for every checkpoint that it translates with.

        Raises:
            UserError: the models of an ensemble were trained on different inputs.
        """
        state = dict(state_dict)
        self._saved_options.take_from(state)
        super().load_state_dict(state)

    def get_interactive_tokens_and_lengths(
        self, lines: List[str], encode_fn: Callable[[str], str]
    ) -> Tuple[List[Tensor], List[int]]:
        """Called only by fairseq-interactive, for each buffer: documents go on from one buffer to the next."""
        self._refuse_given(TRANSLATION_OPTIONS, "fairseq-generate")
        self._lines.begin_buffer()
        tokens_and_lengths: Tuple[List[Tensor], List[int]] = super().get_interactive_tokens_and_lengths(
            lines, encode_fn
        )
        return tokens_and_lengths

    def build_dataset_for_inference(
        self, src_tokens: List[Tensor], src_lengths: List[int], constraints: Optional[Tensor] = None
    ) -> LineDataset:
        """Lines to translate, with the streams that can be made from them. The lines are those of a buffer of
        fairseq-interactive, or a list, which is a document of its own."""
        dataset = super().build_dataset_for_inference(src_tokens, src_lengths, constraints)
        lines = LineDataset(dataset, self.streams.of_lines(dataset, self._lines.before))
        lines.is_translated = True
        self._lines.read(src_tokens, lines, self.streams.context_size())
        if self._pass.context is None:
            self._pass = TranslationPass(self.streams.preceding_target(self.tgt_dict))
        if self._pass.context is not None:
            self._pass.context.begin_lines(len(src_tokens))
        return lines

    def inference_step(
        self, generator: Any, models: Sequence[BaseFairseqModel], sample: Dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Translate a batch as fairseq does, but after the translations that the batch continues. A batch of
        fairseq-interactive gets back the inputs that fairseq-interactive has dropped."""
        if self._lines.dataset is not None:
            sample = self._lines.dataset.restore_inputs(sample, with_numbers=self._pass.context is not None)
        if isinstance(generator, SequenceScorer):
            return super().inference_step(generator, models, sample, *args, **kwargs)
        self._pass.add_context(generator, sample)
        found = super().inference_step(generator, models, sample, *args, **kwargs)
        self._pass.keep(sample, found)
        return found

    def _parts(self, split: str, epoch: int, combine: bool) -> List[Split]:
        """The splits that fairseq joined to this one: itself, and with ``combine`` also ``valid1``, ``valid2``, ..."""
        paths = utils.split_paths(self.cfg.data)
        data_dir = Path(paths[(epoch - 1) % len(paths)])
        languages = self.cfg.source_lang, self.cfg.target_lang
        first = Split(data_dir, split, *languages)
        if not combine:
            return [first]
        others = (Split(data_dir, f"{split}{number}", *languages) for number in count(1))
        return [first, *takewhile(lambda other: other.has(languages[0]), others)]

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False) -> BaseFairseqModel:
        """Build a model as fairseq does. At the start of training, apply ``--warm-start``.

        Raises:
            UserError: the checkpoint of ``--warm-start`` does not fit, or options contradict each other.
        """
        model = super().build_model(cfg, from_checkpoint)
        self._models.append(model)
        self._trains = not from_checkpoint
        self._model_cfg = cfg
        self._model_options.append(ModelOptions.of(model, cfg))
        if from_checkpoint and not isinstance(model, ContextModel):  # ours ignore inputs that they do not read
            _ignore_streams(model)
        # A stream makes sentences longer only up to what every model can read.
        source, target = _max_positions(model)
        self.cfg.max_source_positions = int(min(self.cfg.max_source_positions, source))
        self.cfg.max_target_positions = int(min(self.cfg.max_target_positions, target))
        if isinstance(model, ContextModel) and not from_checkpoint:
            _check_trainable(model)
            if model.pending_warm_start:
                warm_start(model, model.pending_warm_start, cfg)
        InputOptions(self.streams.input_options()).attach(model)
        return model

    def can_reuse_epoch_itr(self, dataset: FairseqDataset) -> bool:
        """Always false: batches are seeded by the epoch in which they are made. Because they are made anew in each
        epoch, a resumed run has the same batches."""
        return False

    def get_batch_iterator(self, dataset: FairseqDataset, *args: Any, **kwargs: Any) -> Any:
        """As fairseq's, but only training data are cut to a multiple of ``--required-batch-size-multiple``.

        Raises:
            UserError: translations that continue others would be made by several processes.
        """
        if dataset is not self._training_data and dataset is not self._lines.dataset:
            context = self.streams.preceding_target(self.tgt_dict)
            self._pass = TranslationPass(context, kwargs.get("num_shards", 1) > 1)
            if self.cfg.eval_bleu and not self._is_translating:
                self._pass.check_alone()
            if isinstance(dataset, SideStreamDataset):
                dataset.is_translated = self._is_translating or self.cfg.eval_bleu
        if dataset is not self._training_data:
            # fairseq's main branch drops what exceeds a multiple (fairseq's issue 5036), but no line may be dropped.
            kwargs["required_batch_size_multiple"] = 1
        self._workers.end_before(dataset)
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)
        self._workers.watch(iterator)
        return iterator

    def build_criterion(self, cfg: FairseqDataclass, *others: Any, **kwargs: Any) -> FairseqCriterion:
        """Build a criterion, after checking that the options of model, task and criterion do not contradict each other.

        Raises:
            UserError: they contradict each other.
        """
        self._refuse_given(TRANSLATION_OPTIONS, "fairseq-generate")
        # fairseq-validate takes the options of task and criterion from the checkpoint too.
        self._check_options(task_option_names(has_criterion=True) | set(cfg))
        self.streams.check_criterion(cfg._name)
        criterion = super().build_criterion(cfg, *others, **kwargs)
        self._has_criterion = True
        for model in self._models:
            if hasattr(criterion, "prepare_for"):
                criterion.prepare_for(model)
        return criterion

    def build_generator(
        self,
        models: Sequence[BaseFairseqModel],
        args: Any,
        seq_gen_cls: Optional[type] = None,
        extra_gen_cls_kwargs: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> Any:
        """Build the generator of translations.

        Raises:
            UserError: the options contradict each other, or do not suit the models.
        """
        is_scored = getattr(args, "score_reference", False)
        is_of_eval_bleu = not self._models  # which builds its generator with the first model
        if not is_of_eval_bleu:
            self._check_options()
            if self._is_translating:
                self._refuse_given(TRAINING_OPTIONS | CRITERION_OPTIONS, "fairseq-train")
            else:  # torch.hub: the task has the options of training, and a model may have got others beside them
                for model in self.streams.models:
                    model.refuse_unread_options()
        alignment = wanted_alignment(args, self.cfg.post_process)
        continues = self.streams.preceding_target(self.tgt_dict) is not None and not is_scored
        if alignment and continues:
            raise UserError(NO_ALIGNMENT)
        if is_scored:
            self._refuse_given(TRANSLATION_OPTIONS, "fairseq-generate without --score-reference")
        if continues:
            self.streams.check_translation()
        if alignment and seq_gen_cls is None:
            extra_gen_cls_kwargs = {**(extra_gen_cls_kwargs or {}), "print_alignment": alignment}
        seq_gen_cls = seq_gen_cls or (AlignmentGenerator if alignment else ContinuingGenerator)
        generator = super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, **kwargs)
        if continues and isinstance(generator, ContinuingGenerator):
            generator.check()
        return generator

    def _check_options(self, overridable: AbstractSet[str] = frozenset()) -> None:
        """Raise UserError where the options do not suit the models, or contradict each other.

        Args:
            overridable: options, besides those of the models, that the command reads from ``--model-overrides``
        """
        overrides = ast.literal_eval(self.cfg.model_overrides or "{}")
        refuse_unread_overrides(overrides, self._model_options, overridable)
        self.streams.check(self._trains)


def _check_trainable(model: ContextModel) -> None:
    """Raise UserError for an option that would have no effect in training, or for an ablation that leaves parameters
    without gradients."""
    model.refuse_unread_options()
    for mechanism in model.mechanisms:
        if mechanism.is_ablated:
            raise UserError(
                f"an ablation of {mechanism.name} leaves some of its parameters without gradients: train without it, "
                f"and give it to a trained model by --model-overrides"
            )


def _max_positions(model: BaseFairseqModel) -> Tuple[float, float]:
    """The greatest lengths of source and target that a model can read."""
    positions = model.max_positions()
    return positions if isinstance(positions, tuple) else (math.inf, math.inf)  # other models have no separate source


def _ignore_streams(model: BaseFairseqModel) -> None:
    """Let one of fairseq's own models be in an ensemble with a model that reads side streams: both get the same
    batch."""
    names = {name for stream in STREAMS for name in stream.inputs}

    def without_streams(forward: Callable) -> Callable:
        @functools.wraps(forward)
        def forward_without_streams(*args: Any, **net_input: Any) -> Any:
            return forward(*args, **{name: value for name, value in net_input.items() if name not in names})

        return forward_without_streams

    for module in filter(None, (model, getattr(model, "encoder", None))):
        module.forward = without_streams(module.forward)
