"""The translations of preceding sentences, which those of later sentences continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_ctxgates.inter_sentence.preceding_translations import PrecedingReferences, PrecedingTranslations
from fairseq_ctxgates.tasks.continuing_generator import ContinuingGenerator
from tests.helpers.models import EOS, PAD, build_model
from tests.helpers.preceding_sentences import batches, make_context_task

SEPARATOR = 9


def make_translations(translations: Dict[int, List[int]]) -> PrecedingTranslations:
    """By the numbers of their sentences, without end of sentence."""
    made = PrecedingTranslations(SEPARATOR, PAD, target_count=3)
    made.keep({"id": torch.tensor([*translations])}, [torch.tensor([*row, EOS]) for row in translations.values()])
    return made


def batch_of(rows: Sequence[Sequence[int]], **more: Tensor) -> Dict[str, Any]:
    """What is read of a batch whose sentences have these before them."""
    return {"preceding_rows": rows, "net_input": {"src_tokens": torch.zeros(len(rows), 1)}, **more}


def test_translations_are_joined_in_order() -> None:
    """Each with the separator in place of its end; where there are too many tokens, the last ones."""
    translations = make_translations({4: [10], 5: [11, 12], 6: [13]})
    batch = batch_of([[4, 5, 6], [5], []])
    assert translations.tokens(batch, longest=20).tolist() == [
        [10, SEPARATOR, 11, 12, SEPARATOR, 13, SEPARATOR],
        [11, 12, SEPARATOR, PAD, PAD, PAD, PAD],
        [PAD] * 7,
    ]
    assert translations.tokens(batch, longest=4).tolist() == [
        [12, SEPARATOR, 13, SEPARATOR],
        [11, 12, SEPARATOR, PAD],
        [PAD] * 4,
    ]


def test_what_comes_before_a_translation_that_was_left_out_is_not_read() -> None:
    translations = make_translations({4: [10], 6: [13]})
    assert translations.before([4, 5, 6]).tolist() == [13, SEPARATOR]
    assert translations.before([4, 5]).tolist() == []


def test_references_take_the_place_of_translations() -> None:
    references = torch.tensor([[14, 15, SEPARATOR], [16, SEPARATOR, PAD]])
    batch = batch_of([[4], [5]], preceding_references=references)
    context = PrecedingReferences(PAD)
    context.keep(batch, [torch.tensor([10, EOS]), torch.tensor([11, EOS])])
    assert context.tokens(batch, longest=2).tolist() == [[15, SEPARATOR], [16, SEPARATOR]]


def test_translations_of_earlier_lines_are_forgotten() -> None:
    translations = PrecedingTranslations(separator=EOS, padding=PAD, target_count=3)
    for line in range(1000):
        translations.begin_lines(1)
        translations.keep({"id": torch.tensor([0])}, [torch.tensor([line, EOS])])
        assert len(translations.translations) <= 4
    translations.begin_lines(1)
    assert translations.before([-3, -2, -1]).tolist() == [997, EOS, 998, EOS, 999, EOS]


def make_joining_task(data: Path, **options: Any) -> Any:
    """A task that joins three preceding sentences and their translations."""
    options = {"concatenate_number": 3, "concatenate_preceding_target": True, **options}
    return make_context_task(data, load_preceding_sentences=False, concatenate_preceding="<sep>", **options)


def test_what_is_joined_is_no_longer_than_the_model_reads(with_targets: Path) -> None:
    task = make_joining_task(with_targets)
    build_model("context_transformer", task, max_source_positions=40, max_target_positions=20)
    task.load_dataset("train")
    found = batches(task, "train")
    for name, longest in (("src_tokens", 40), ("prev_output_tokens", 20)):
        assert max(batch["net_input"][name].size(1) for batch in found) == longest


def test_validation_has_full_batches_and_only_translation_goes_from_sentence_to_sentence(with_targets: Path) -> None:
    """fairseq-validate is given ``--path``, as fairseq-generate is."""
    task = make_joining_task(with_targets, path="model.pt")
    build_model("context_transformer", task)
    task.load_dataset("valid")
    assert len(batches(task, "valid")) == 6, "the longest document has so many sentences"
    task.build_criterion(OmegaConf.create({"_name": "cross_entropy", "sentence_avg": False}))
    assert len(batches(task, "valid")) == 2


def test_eval_bleu_goes_from_sentence_to_sentence(with_targets: Path) -> None:
    task = make_joining_task(with_targets)
    build_model("context_transformer", task)
    task.cfg.eval_bleu = True
    task.load_dataset("valid")
    assert len(batches(task, "valid")) == 6


def test_translations_before_take_up_to_half_of_the_models_positions(
    with_targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_joining_task(with_targets, path="model.pt")
    model = build_model("context_transformer", task, max_target_positions=12)
    task.load_dataset("valid")
    translation, separator = [4, 5, 6, EOS], task.target_dictionary.index("<sep>")
    contexts: Dict[int, List[int]] = {}

    def generate(self: Any, models: Any, sample: Dict[str, Any], **_: Any) -> List[List[Dict[str, Tensor]]]:
        contexts.update(zip(sample["id"].tolist(), sample["preceding_target"].tolist()))
        return [[{"tokens": torch.tensor(translation)}] for _ in sample["id"]]

    monkeypatch.setattr(ContinuingGenerator, "generate", generate)
    generator = ContinuingGenerator([model], task.target_dictionary)
    for batch in task.get_batch_iterator(task.dataset("valid"), max_sentences=1).next_epoch_itr(shuffle=False):
        task.inference_step(generator, [model], batch)
    joined = [4, 5, 6, separator]
    # Documents of six, one and four sentences.
    expected = [[], joined, *[[6, separator, *joined]] * 4, [], [], joined, *[[6, separator, *joined]] * 2]
    assert contexts == dict(enumerate(expected))
