"""Tiny binarized data directories, made with fairseq's own dictionary and index builder."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping, Sequence, Tuple

from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

Pair = Tuple[str, str]


def binarize(
    folder: Path, splits: Mapping[str, Sequence[Pair]], source_lang: str, target_lang: str, joined: bool = False
) -> Path:
    """Write what fairseq-preprocess writes for ``{"train": [(source, target), ...], "valid": ...}``.

    The dictionaries hold the words of the splits whose name begins with "train" (of all splits if no name does),
    the most frequent first; other words become ``<unk>``. ``joined`` gives both languages one dictionary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    langs = (source_lang, target_lang)
    training = [pairs for name, pairs in splits.items() if name.startswith("train")] or list(splits.values())
    text = [[pair[side] for pairs in training for pair in pairs] for side in range(2)]
    dictionaries = [make_dictionary(text[0] + text[1])] * 2 if joined else [make_dictionary(lines) for lines in text]
    for side, lang in enumerate(langs):
        dictionaries[side].save(str(folder / f"dict.{lang}.txt"))
        for name, pairs in splits.items():
            write_split(
                folder / f"{name}.{source_lang}-{target_lang}.{lang}",
                [pair[side] for pair in pairs],
                dictionaries[side],
            )
    return folder


def make_dictionary(lines: Sequence[str]) -> Dictionary:
    dictionary = Dictionary()
    for line in lines:
        for word in line.split():
            dictionary.add_symbol(word)
    dictionary.finalize(padding_factor=1)
    return dictionary


def write_split(prefix: Path, lines: Sequence[str], dictionary: Dictionary) -> None:
    """Write ``<prefix>.bin`` and ``.idx``, each sentence closed by the end-of-sentence symbol."""
    builder = make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(dictionary))
    for line in lines:
        builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
    builder.finalize(f"{prefix}.idx")
