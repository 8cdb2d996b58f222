"""Text that a tokenizer has split, and is joined again: the three BLEUs of fairseq, and sentencepiece."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import List

import pytest
import sacrebleu

from tests.helpers.corpus import Pair, binarize
from tests.helpers.documents import ISG, TEXT, interactive_lines, write_preceding
from tests.helpers.fairseq_commands import (
    DECODING,
    SEARCH,
    SMOOTHED,
    TASK,
    check_same_translations,
    hypotheses,
    logged,
    run,
)
from tests.helpers.trained import Trained, train_models

MOSES = ("--tokenizer", "moses")
EVAL_BLEU_MOSES = (
    *("--eval-bleu", "--eval-bleu-detok", "moses", "--eval-bleu-detok-args", '{"target_lang": "en"}'),
    *("--eval-bleu-args", '{"beam": 2, "max_len_b": 12}'),
)


def printed(output: str, mark: str) -> List[str]:
    """The texts of the lines that begin with a mark, as ``T``, in the order of the rows."""
    found = re.findall(rf"^{mark}-(\d+)\t(?:-?[\d.e-]+\t)?(.*)$", output, flags=re.MULTILINE)
    return [text for _, text in sorted(found, key=lambda line: int(line[0]))]


def printed_bleu(output: str) -> float:
    """The score in the last line of fairseq-generate."""
    (score,) = re.findall(r"^Generate valid with beam=2: BLEU4? = ([\d.]+)", output, flags=re.MULTILINE)
    return float(score)


# --- Moses


def make_tokenized_pairs(number: int, seed: int) -> List[Pair]:
    """Sentences as Moses's tokenizer writes them: a genitive, a hyphen or a comma inside, and a mark at the end."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(number):
        words = [rng.randrange(8) for _ in range(rng.randint(3, 6))]
        joint, end = rng.choice(["&apos;s", "@-@", ","]), rng.choice([".", "?"])
        sides = [[f"{side}{word}" for word in words] for side in ("qu", "zo")]
        texts = [" ".join([*side[:2], joint, *side[2:], end]) for side in sides]
        pairs.append((texts[0], texts[1]))
    return pairs


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model that logs the BLEU of detokenized text."""
    pytest.importorskip("sacremoses")
    folder = tmp_path_factory.mktemp("tokenized")
    splits = {"train": make_tokenized_pairs(120, 1), "valid": make_tokenized_pairs(16, 2)}
    data = binarize(folder / "data", splits, "de", "en")
    epochs = ("--max-epoch", 16, "--validate-interval", 8, "--no-epoch-checkpoints", "--dropout", 0)
    models = {"gated": ("--arch", "rcg_transformer_tiny", *SMOOTHED, *EVAL_BLEU_MOSES)}
    return train_models(data, folder, models, *epochs)


def test_three_bleus(tokenized: Trained) -> None:
    """fairseq-generate's own is of the tokens in the data. With ``--scoring sacrebleu`` it is of detokenized text, as
    is that of training."""
    generate = ("generate", tokenized.data, *TASK, "--path", tokenized["gated"], *DECODING, "--gen-subset", "valid")
    of_tokens = run(*generate)
    of_text = run(*generate, *MOSES, "--scoring", "sacrebleu")

    tokens, token_references = printed(of_tokens, "H"), [printed(of_tokens, "T")]
    unsmoothed = sacrebleu.corpus_bleu(tokens, token_references, tokenize="none", smooth_method="none")
    assert printed_bleu(of_tokens) == pytest.approx(unsmoothed.score, abs=0.01)

    text, references = printed(of_text, "D"), [printed(of_text, "T")]
    assert any("'s zo" in reference for reference in references[0])
    assert not any("&apos;" in line or " ?" in line for line in (*text, *references[0]))
    detokenized = sacrebleu.corpus_bleu(text, references).score
    assert printed_bleu(of_text) == pytest.approx(detokenized, abs=0.1)
    assert float(logged(tokenized.logs["gated"], "valid")[-1]["valid_bleu"]) == pytest.approx(detokenized, abs=0.01)

    assert 5 < detokenized < 99 and abs(detokenized - unsmoothed.score) > 0.1


# --- sentencepiece


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model that reads the preceding sentence, trained on documents of sentencepiece's pieces."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("pieces")
    pairs = {split: [pair for document in documents for pair in document] for split, documents in TEXT.items()}
    text = [line for pair in pairs["train"] for line in pair]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_prefix=str(folder / "pieces"),
        vocab_size=24,
        model_type="bpe",
        minloglevel=2,
    )
    encoder = sentencepiece.SentencePieceProcessor(model_file=str(folder / "pieces.model"))

    def split(line: str) -> str:
        return " ".join(encoder.encode(line, out_type=str))

    splits = {name: [(split(source), split(target)) for source, target in lines] for name, lines in pairs.items()}
    data = binarize(folder / "data", splits, "de", "en", joined=True)
    write_preceding(data)
    return train_models(data, folder, {"isg": (*ISG, "--share-all-embeddings")}, "--max-epoch", 2)


def test_interactive_splits_documents_with_sentencepiece(pieces: Trained, tmp_path: Path) -> None:
    """Lines of text, an empty one after each document, are translated as their pieces with their preceding sentences
    are, and are joined again."""
    encoding = ("--bpe", "sentencepiece", "--sentencepiece-model", pieces.folder / "pieces.model")
    text = tmp_path / "input"
    text.write_text("".join(f"{line}\n" for line in interactive_lines()))
    command = ("--path", pieces["isg"], *TASK, *SEARCH, "--batch-size", 8)
    expected = run("generate", pieces.data, *command, *encoding)
    assert any("▁" in hypothesis.text for hypothesis in hypotheses(expected).values())

    lines = ("--input", text, "--buffer-size", 8)
    found = run("interactive", pieces.data, *command, *encoding, *lines)

    rows = [number for number, line in enumerate(interactive_lines()) if line]
    translations = hypotheses(found)
    check_same_translations({row: translations[number] for row, number in enumerate(rows)}, hypotheses(expected))
    joined = printed(found, "D")
    assert [joined[number] for number in rows] == printed(expected, "D")
    assert not any("▁" in line for line in joined)
    removed = run("interactive", pieces.data, *command, *encoding, *lines, "--remove-bpe", "sentencepiece")
    assert printed(removed, "H") == joined
