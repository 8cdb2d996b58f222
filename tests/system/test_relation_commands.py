"""Factual relations (FRA) through fairseq's commands: training, generation, scoring, lines on standard input."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import data_utils

from fairseq_ctxgates.commands.preceding_sentences import main as preceding_sentences
from fairseq_ctxgates.errors import UserError
from fairseq_ctxgates.relations import stream
from fairseq_ctxgates.relations.mask import pack_tuples
from tests.helpers.corpus import Pair, binarize
from tests.helpers.extractors import StubExtractor
from tests.helpers.fairseq_commands import (
    DECODING,
    EVAL_BLEU,
    GATED,
    PLAIN,
    SEARCH,
    SMOOTHED,
    check_batches_change_nothing,
    check_checkpoint_activations,
    check_ensemble_scores,
    check_options_train,
    check_padding_side_changes_nothing,
    check_same_translations,
    check_stream_is_loaded_without_being_told,
    check_training_is_refused,
    differ,
    generate,
    interactive,
    make_pairs,
    new_parameters,
    train,
    train_losses,
    validate,
    write_gate_labels,
    write_relations,
)
from tests.helpers.models import multiplies_float16
from tests.helpers.trained import Trained, train_models

FRA = ("--arch", "fra_transformer_tiny", "--load-relations", *SMOOTHED)
SENTENCES = {"train": 48, "valid": 10, "test": 20}


def tuples_of(source: str) -> List[List[int]]:
    """The relations of a source sentence: its first three words, and its second with its last word. A sentence of up to
    three words has none."""
    length = len(source.split())
    return [[0, 1, 2], [1, length - 1]] if length > 3 else []


TEXT: Dict[str, List[Pair]] = {
    split: make_pairs(number, seed) for seed, (split, number) in enumerate(SENTENCES.items())
}


def add_relations(data: Path, has_relations: bool = True) -> None:
    """Write the stream of relations of every split: those of :func:`tuples_of`, or none."""
    for split, pairs in TEXT.items():
        write_relations(data, split, [pack_tuples(tuples_of(source) if has_relations else []) for source, _ in pairs])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A plain Transformer; one with relations, warm-started from the plain one; and one with the mask "word"."""
    folder = tmp_path_factory.mktemp("fra")
    data = binarize(folder / "data", TEXT, "de", "en", joined=True)
    add_relations(data)
    write_gate_labels(data)
    start = ("--warm-start", folder / "plain" / "checkpoint_last.pt", "--separate-relation-attention")
    models = {
        "plain": (*PLAIN, "--max-epoch", 2),
        "fra": (*FRA, *start, "--max-epoch", 6),
        "words": (*FRA, "--relation-mask", "word", "--max-epoch", 2),
    }
    return train_models(data, folder, models, "--share-all-embeddings", "--no-epoch-checkpoints")


# Training


def test_training_goes_on_from_the_baseline(trained: Trained) -> None:
    assert "train: side streams relation" in trained.logs["fra"]
    losses = train_losses(trained.logs["fra"])
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert new_parameters(trained.logs["fra"]) == (8 + 2, 8)


def test_warm_started_linear_needs_no_parameters(trained: Trained, tmp_path: Path) -> None:
    """Trained for one update at a learning rate of zero and with λ = 0, the model is the baseline."""
    fusion = ("--relation-fusion", "linear", "--relation-lambda", 0, "--share-all-embeddings")
    log = train(trained.data, tmp_path, *FRA, *fusion, "--warm-start", trained["plain"], "--lr", "0", "--max-update", 1)
    assert "0 of the mechanisms' own are new" in log
    check_same_translations(generate(trained.data, tmp_path / "checkpoint_last.pt"), trained.translations("plain"))


def test_all_mechanisms_together(trained: Trained, tmp_path: Path) -> None:
    data = Path(shutil.copytree(trained.data, tmp_path / "data"))
    for split, number in SENTENCES.items():
        (tmp_path / f"{split}.docids").write_text("".join(f"{row // 4}\n" for row in range(number)))
    documents = [f"{split}={tmp_path / split}.docids" for split in SENTENCES]
    preceding_sentences([str(data), "-s", "de", "-t", "en", "--documents", *documents])
    mechanisms = (
        *(*GATED, "--load-relations", "--relation-fusion", "concat-gate", "--relation-layers", "all"),
        *("--load-preceding-sentences", "--inter-sentence-gate", "--smoothing", "ccwm", "--smoothing-side", "both"),
    )
    log = train(data, tmp_path / "models", *mechanisms, "--max-epoch", 2)
    assert "side streams relation, preceding, gate" in log
    losses = train_losses(log)
    assert losses[1] < losses[0]
    names = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "models" / "checkpoint_last.pt"))["model"]
    for part in ("connection.fc1", "parts.inter_sentence", "parts.relations", "embedding_parts.smoothing"):
        assert any(part in name for name in names)
    assert len(generate(data, tmp_path / "models" / "checkpoint_last.pt")) == 20


@pytest.mark.parametrize(
    "extra",
    [
        ("--decoder-layerdrop", "0.5", "--encoder-layerdrop", "0.5"),
        ("--update-freq", 2),
        ("--encoder-normalize-before", "--decoder-normalize-before", "--relation-fusion", "gate"),
        ("--relation-mask-operation", "multiply", "--relation-fusion", "linear", "--attention-dropout", "0.1"),
        ("--context-gate", "interpolate"),
        ("--smoothing", "fcwm", "--smoothing-words", "all", "--smoothing-side", "encoder"),
        ("--relation-layers", "all", "--relation-fusion", "concat-gate"),
        *(
            pytest.param(
                ("--memory-efficient-fp16", "--fp16-init-scale", 4, "--relation-mask-operation", operation),
                marks=multiplies_float16,
            )
            for operation in ("fill", "multiply")
        ),
        EVAL_BLEU,
    ],
)
def test_options_of_fairseq(trained: Trained, tmp_path: Path, extra: Tuple[Any, ...]) -> None:
    check_options_train(trained.data, tmp_path, FRA, extra)


def test_checkpoint_activations_change_nothing(trained: Trained, tmp_path: Path) -> None:
    check_checkpoint_activations(trained.data, tmp_path, *FRA)


def test_padding_side_of_the_source(trained: Trained, tmp_path: Path) -> None:
    check_padding_side_changes_nothing(trained.data, tmp_path, *FRA)


# Generation


def forced_scores(trained: Trained, checkpoint: Path, targets: Sequence[str]) -> List[float]:
    """The score of these translations of the test set, log2 P for each token, all sentences in one batch: with padding
    in source and target."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], {"data": str(trained.data)})
    model.eval()
    task.load_dataset("test")
    dataset = task.dataset("test")
    net_input = dataset.collater([dataset[row] for row in range(len(dataset))])["net_input"]
    ids = dataset.collater([dataset[row] for row in range(len(dataset))])["id"].tolist()
    assert net_input["src_tokens"].eq(task.source_dictionary.pad()).any()
    dictionary = task.target_dictionary
    tokens = [dictionary.encode_line(targets[row], add_if_not_exist=False).long() for row in ids]
    pad, eos = dictionary.pad(), dictionary.eos()
    target = data_utils.collate_tokens(tokens, pad)
    net_input["prev_output_tokens"] = data_utils.collate_tokens(tokens, pad, eos, move_eos_to_beginning=True)
    with torch.no_grad():
        log_probs = model.get_normalized_probs(model(**net_input), log_probs=True)
    scores = log_probs.gather(2, target.unsqueeze(2)).squeeze(2).masked_fill(target.eq(pad), 0).sum(dim=1)
    means = scores / target.ne(pad).sum(dim=1) / torch.tensor(2.0).log()
    return [means[ids.index(row)].item() for row in range(len(ids))]


@pytest.mark.parametrize("model", ["fra", "words"])
def test_generate_scores_as_forced_decoding(trained: Trained, model: str) -> None:
    """The classic stack has a fast path for encoders, which drops the mask of a batch with padding."""
    checkpoint = trained[model]
    found = generate(trained.data, checkpoint)
    scores = forced_scores(trained, checkpoint, [found[row].text for row in range(20)])
    assert scores == pytest.approx([found[row].score for row in range(20)], abs=1e-4)
    blind = generate(trained.data, checkpoint, "--model-overrides", "{'relation_ablation': 'compare'}")
    related = [row for row, (source, _) in enumerate(TEXT["test"]) if tuples_of(source)]
    assert set(differ(blind, found)) <= set(related) and len(differ(blind, found)) > 8, "the mask counts"


@pytest.mark.parametrize("size", [("--batch-size", "1"), ("--batch-size", "20"), ("--max-tokens", "24")])
def test_batches_change_nothing(trained: Trained, size: Tuple[str, str]) -> None:
    found = trained.translations("fra")
    assert len(found) == 20
    check_batches_change_nothing(trained.data, trained["fra"], size, found)


def test_relations_are_loaded_without_being_told(trained: Trained, tmp_path: Path) -> None:
    check_stream_is_loaded_without_being_told(
        trained.data, trained["fra"], trained.logs["fra"], "relation", "relations", tmp_path
    )


def test_the_kind_of_mask_is_in_the_checkpoint(trained: Trained) -> None:
    found = trained.translations("words")
    check_same_translations(generate(trained.data, trained["words"], "--relation-mask", "word"), found)
    pair = generate(trained.data, trained["words"], "--relation-mask", "pair")
    assert len(differ(pair, found)) > 5
    with pytest.raises(UserError, match="--path: one model was trained with --relation-mask"):
        generate(trained.data, trained.ensemble("fra", "words"))
    plain = generate(trained.data, trained.ensemble("words", "plain"))  # which reads no mask
    check_same_translations(generate(trained.data, trained.ensemble("plain", "words")), plain)


def test_training_goes_on_with_the_kind_of_mask_of_its_checkpoint(trained: Trained, tmp_path: Path) -> None:
    common = (*FRA, "--share-all-embeddings", "--no-epoch-checkpoints", "--max-epoch", 3)
    logs = []
    for name, options in (("without", ()), ("with", ("--relation-mask", "word"))):
        resume = ("--restore-file", trained["words"])
        logs.append(train_losses(train(trained.data, tmp_path / name, *common, *options, *resume)))
        found = generate(trained.data, tmp_path / name / "checkpoint_last.pt")
        assert differ(generate(trained.data, tmp_path / name / "checkpoint_last.pt", "--relation-mask", "pair"), found)
    assert logs[0] == logs[1]
    for model, mask, was in (("words", "pair", "word"), ("fra", "word", "pair")):
        separate = ("--separate-relation-attention",) if model == "fra" else ()
        other = (*separate, "--relation-mask", mask, "--restore-file", trained[model])
        with pytest.raises(
            UserError, match=f"--relation-mask {mask}: the checkpoint was trained with .*mask {was}; leave"
        ):
            train(trained.data, tmp_path / "other", *common, *other)


def test_compare_fusion_equals_no_relations(trained: Trained, tmp_path: Path) -> None:
    """The ablation also needs no stream."""
    data = Path(shutil.copytree(trained.data, tmp_path / "data"))
    add_relations(data, has_relations=False)
    expected = generate(data, trained["fra"])
    for path in data.glob("*.relation.*"):
        path.unlink()
    compare = ("--model-overrides", "{'relation_ablation': 'compare'}")
    check_same_translations(generate(data, trained["fra"], *compare), expected)
    # fairseq-validate takes the options of training, --load-relations with them.
    assert (
        validate(trained.data, trained["fra"], *compare)["valid_loss"]
        != validate(trained.data, trained["fra"])["valid_loss"]
    )


@pytest.fixture(scope="module")
def rnnsearch(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An RNNSearch, which reads no relations."""
    folder = tmp_path_factory.mktemp("rnnsearch")
    sizes = (f"--{side}-{size}" for side in ("encoder", "decoder") for size in ("embed-dim", "hidden-size"))
    options = ("--arch", "rnnsearch", *SMOOTHED, *(part for size in sizes for part in (size, 16)), "--max-epoch", 1)
    train(trained.data, folder, *options, "--no-epoch-checkpoints")
    return folder / "checkpoint_last.pt"


@pytest.mark.parametrize("other", ["plain", "rnnsearch"])
@pytest.mark.parametrize("scoring", [(), ("--score-reference",)])
def test_ensemble_with_a_model_that_reads_no_relations(
    trained: Trained, rnnsearch: Path, other: str, scoring: Tuple[str, ...]
) -> None:
    paths = [str(trained["fra"]), str({"plain": trained["plain"], "rnnsearch": rnnsearch}[other])]
    found = generate(trained.data, ":".join(paths), *scoring)
    check_same_translations(generate(trained.data, ":".join(paths[::-1]), *scoring), found)
    if scoring:
        check_ensemble_scores(found, [generate(trained.data, path, *scoring) for path in paths])


# Lines on standard input


@pytest.mark.parametrize("buffer_size", [1, 7, 100])
def test_interactive_equals_generate(
    trained: Trained, tmp_path: Path, buffer_size: int, extractor: StubExtractor
) -> None:
    extractor.find = lambda words: tuples_of(" ".join(words))
    lines = ["", *(source for source, _ in TEXT["test"])]
    random.Random(5).shuffle(lines)
    sizes = ("--buffer-size", buffer_size, "--batch-size", min(buffer_size, 4))
    found = interactive(trained.data, trained["fra"], lines, tmp_path, *SEARCH, *sizes, "--relation-extractor", "known")
    row_of = {source: row for row, (source, _) in enumerate(TEXT["test"])}
    for line, hypothesis in zip(lines, found):
        if line:
            check_same_translations({0: hypothesis}, {0: trained.translations("fra")[row_of[line]]})


def test_interactive_without_an_extractor_has_no_relations(trained: Trained, tmp_path: Path) -> None:
    stream._warn_that_there_are_none.cache_clear()
    data = Path(shutil.copytree(trained.data, tmp_path / "data"))
    add_relations(data, has_relations=False)
    lines = [source for source, _ in TEXT["test"]]
    found = interactive(trained.data, trained["fra"], lines, tmp_path, *DECODING, "--buffer-size", 8)
    check_same_translations(dict(enumerate(found)), generate(data, trained["fra"]))


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*PLAIN, "--load-relations"), "--load-relations needs a model that reads them: --arch fra_transformer"),
        ((*FRA, "--relation-fusion", "none"), "--load-relations needs a model that reads them"),
        ((*FRA, "--concatenate-preceding", "</s>"), "--concatenate-preceding cannot be combined with the stream"),
        ((*FRA, "--relation-layers", "3"), "--relation-layers 3: the model has layers 1 to 2"),
        ((*FRA, "--relation-fusion", "linear", "--relation-lambda", "2"), "--relation-lambda 2.0.*between 0 and 1"),
        ((*FRA, "--relation-fusion", "sum"), "invalid choice: 'sum'"),
        ((*FRA, "--relation-mask", "tuple"), "invalid choice: 'tuple'"),
        (
            ("--arch", "context_transformer_tiny", *SMOOTHED, "--relation-mask-operation", "multiply"),
            "--relation-mask-operation multiply would do nothing: it needs --relation-fusion",
        ),
        (
            ("--arch", "isg_transformer_tiny", *SMOOTHED, "--separate-relation-attention"),
            "--separate-relation-attention True would do nothing: it needs --relation-fusion",
        ),
        ((*FRA, "--task", "translation"), "--task context_translation|unrecognized arguments: --load-relations"),
        (("--arch", "fra_transformer_tiny", *SMOOTHED, "--task", "translation"), "--task context_translation"),
    ],
)
def test_options_that_do_not_fit(
    trained: Trained, tmp_path: Path, options: Tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_training_is_refused(trained.data, tmp_path, options, message, capsys)


def test_a_mistyped_ablation_is_refused(trained: Trained) -> None:
    with pytest.raises(UserError, match="relation_ablaton"):
        generate(trained.data, trained["fra"], "--model-overrides", "{'relation_ablaton': 'compare'}")
