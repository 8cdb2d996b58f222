"""A page for a browser that shows what an analysis found for each target word of some sentences.

The page is one file that needs nothing else. Words are coloured by their values, one line for each series (a model, or
a layer); the preceding sentences stand beside each sentence, and the attention over them is shown under the pointer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

TEMPLATE = Path(__file__).with_name("page.html")
TOP = 20  # words listed above the sentences


@dataclass(frozen=True)
class PageSentence:
    """A sentence of the page.

    Attributes:
        number: the number of the sentence in the split, from 1
        before: the tokens of the preceding source sentences, the nearest last
        source, tokens: the source tokens and the target tokens
        values: for each series, the value of each target token
        attention: for each series with attention, the weights of the last preceding tokens, (target length, their
            number)
        labels: the labels of the target tokens, "" for none; None without labels
    """

    number: int
    before: Sequence[Sequence[str]]
    source: Sequence[str]
    tokens: Sequence[str]
    values: Mapping[str, Sequence[float]]
    attention: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    labels: Optional[Sequence[str]] = None


@dataclass(frozen=True)
class Page:
    """A page, with its sentences in order.

    Attributes:
        title, what: the heading, and what the colours mean
        series: the names of the lines
        middle: the value that has no colour
        range: the distance from ``middle`` at which the colour is full
        low, high: what lower and higher values mean
        lists_top: whether the words with the highest values are listed
    """

    title: str
    what: str
    series: Sequence[str]
    sentences: Sequence[PageSentence]
    middle: float
    range: float
    low: str
    high: str
    lists_top: bool = True

    def top(self) -> List[Dict[str, object]]:
        """The words with the highest values, each with the series in which its value is highest."""
        words: List[Dict[str, object]] = []
        for sentence in self.sentences:
            for place, token in enumerate(sentence.tokens):
                value, series = max((values[place], series) for series, values in sentence.values.items())
                words.append({"token": token, "value": value, "number": sentence.number, "series": series})
        return sorted(words, key=itemgetter("value"), reverse=True)[:TOP]

    def html(self) -> str:
        """The page."""
        content = {**asdict(self), "top": self.top() if self.lists_top else []}
        del content["lists_top"]
        # In a script element, HTML gives a meaning only to the beginning of a tag.
        data = json.dumps(content, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
        return TEMPLATE.read_text(encoding="utf-8").replace("{{data}}", data)
