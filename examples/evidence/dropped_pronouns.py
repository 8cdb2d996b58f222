"""A contrastive test set of pronouns that Chinese leaves out: *he*, *she* or *it* against the other two.

``python examples/evidence/dropped_pronouns.py corpora/dialogues pronouns``

The sentences come from valid and test (valid has chosen the checkpoint, but by its likelihood, which says little about
these words). A sentence is taken if its reference has exactly one of the three words, its source has none of 他, 她 and
它, and it is not the first of its dialogue. The set ``antecedent`` has those sentences whose preceding source sentence
has the pronoun of that gender and no other: there the context decides. Both sets are files for ``ctxgates analyze
contrastive`` in the tokens of the binarized text: ``source``, ``reference``, ``wrong1``, ``wrong2``; the three
sentences before, nearest first, ``preceding1`` to ``preceding3``, empty before the beginning of the dialogue; and the
references of these three, ``preceding-target1`` to ``preceding-target3``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

from fairseq_ctxgates.errors import exit_on_user_error
from fairseq_ctxgates.files import read_lines

PRONOUNS = {"he": "他", "she": "她", "it": "它"}
PRECEDING = 3  # sentences


class Example(NamedTuple):
    """A sentence with a pronoun that its source leaves out, after the preceding sentences.

    Attributes:
        preceding: source sentences, the nearest first, empty before the beginning of the dialogue
        preceding_target: their references
        wrong: the reference with each of the other pronouns
        has_antecedent: whether the preceding source sentence has the pronoun's gender, and no other
    """

    source: str
    preceding: Sequence[str]
    preceding_target: Sequence[str]
    reference: str
    wrong: Sequence[str]
    has_antecedent: bool


def find_examples(source: Sequence[str], target: Sequence[str], documents: Sequence[str]) -> Iterator[Example]:
    """The examples of a text, in its order."""
    for line in range(1, len(source)):
        words = target[line].split()
        before = ["", *words]  # after @@, a token is the end of a longer word
        places = [place for place, word in enumerate(words) if word in PRONOUNS and not before[place].endswith("@@")]
        if documents[line] != documents[line - 1] or len(places) != 1 or genders(source[line]):
            continue
        (place,) = places
        right = words[place]
        wrong = [" ".join([*words[:place], other, *words[place + 1 :]]) for other in PRONOUNS if other != right]
        has_antecedent = genders(source[line - 1]) == [right]
        rows = range(line - 1, line - 1 - PRECEDING, -1)
        is_there = [row >= 0 and documents[row] == documents[line] for row in rows]
        preceding, preceding_target = (
            [text[row] if there else "" for row, there in zip(rows, is_there)] for text in (source, target)
        )
        yield Example(source[line], preceding, preceding_target, target[line], wrong, has_antecedent)


def genders(chinese: str) -> List[str]:
    """The English pronouns for the Chinese ones in a sentence; 他 in 他们 (*they*) and in 其他 (*other*) does not
    count."""
    words = chinese.replace("@@ ", "").split()
    return [english for english, character in PRONOUNS.items() if character in words]


def write_set(folder: Path, examples: Sequence[Example]) -> None:
    """Write a test set, a file for each of its sides."""
    folder.mkdir(parents=True, exist_ok=True)
    sides: Dict[str, List[str]] = {
        "source": [example.source for example in examples],
        "reference": [example.reference for example in examples],
        **{f"wrong{n + 1}": [example.wrong[n] for example in examples] for n in range(len(PRONOUNS) - 1)},
        **{f"preceding{n + 1}": [example.preceding[n] for example in examples] for n in range(PRECEDING)},
        **{f"preceding-target{n + 1}": [example.preceding_target[n] for example in examples] for n in range(PRECEDING)},
    }
    for name, lines in sides.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Write both sets, and print how many examples each has."""
    parser = argparse.ArgumentParser(description="Make the contrastive test set of pronouns that Chinese leaves out.")
    parser.add_argument("corpus", type=Path, help="the folder of the corpus, as examples/evidence/run.py makes it")
    parser.add_argument("folder", type=Path, help="where the sets are written")
    args = parser.parse_args(argv)
    examples: List[Example] = []
    for split in ("valid", "test"):
        source, target = (read_lines(args.corpus / f"{split}.bpe.{language}") for language in ("zh", "en"))
        examples += find_examples(source, target, read_lines(args.corpus / "text" / f"{split}.docids"))
    decided = [example for example in examples if example.has_antecedent]
    write_set(args.folder / "dropped", examples)
    write_set(args.folder / "antecedent", decided)
    print(f"{len(examples)} examples, {len(decided)} of them with an antecedent in the preceding sentence")


if __name__ == "__main__":
    with exit_on_user_error():
        main()
