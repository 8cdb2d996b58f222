"""Make the quick start's parallel corpus: toy English to toy German, from a seed.

Every document has seven sentences. Some of their words can be translated only with information that one of this
project's methods reads or learns; ``README.md`` says what is expected of which model:

===================  ==========================================  ================================================
construction         example                                     what decides the probed word
===================  ==========================================  ================================================
preceding sentence   we visit your lakes . /                     the topic of the sentence before: ``kraniche``
                     we see your small cranes .                  (birds) after nature, ``kräne`` after industry
distant sentence     they visit lakes . / … / they see small     the topic of the sentence before the one before:
                     bats .                                      ``fledermäuse`` (animals), or ``schläger`` to hit
address              the same                                    the translation of the sentence before, in which
                                                                 ``deine`` or ``ihre`` for *your* was a free choice
relations            farmers judges buy wash lamps boxes .       the relation tuples, and nothing else: who buys
                                                                 and who washes, and what
collocation trap     nurses milk cows often .                    the source; but in training ``melken`` takes
                                                                 ``kühe`` 95 times in 100
unknown words        red <unk> fall daily .                      the exclusive-or of its neighbours' types:
                                                                 ``leute`` or ``sachen``
===================  ==========================================  ================================================

For each split (``train``, ``valid``, ``test`` and a ``probe-NAME`` for each construction) it writes, one line per
sentence,

- ``SPLIT.en``, ``SPLIT.de``: the words, separated by spaces;
- ``SPLIT.docids``: the name of the sentence's document;
- ``SPLIT.tuples.jsonl``: ``{"words": [...], "tuples": [{"subject": [0], "relation": [2], "object": [4]}]}``, where the
  numbers are positions among the source words, from 0;

and for a probe ``SPLIT.probed.tsv``: a row for each probed target word, with its line and its position in the line
(both from 1), the word, and its rival, which a model without the deciding information would choose as often or more
often.

A seed gives the same bytes on every version of Python: only ``random.Random.random()`` is used, which Python promises
not to change.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

SOURCE_LANG, TARGET_LANG = "en", "de"
DOCUMENTS = {"train": 1000, "valid": 50, "test": 100}

# Every source word has one translation, except ambiguous words, unknown words and "your".
TOPIC_VERBS = {"visit": "besuchen", "describe": "beschreiben", "seek": "suchen", "photograph": "fotografieren"}
NATURE_TOPICS = {
    "forests": "wälder", "rivers": "flüsse", "lakes": "seen", "meadows": "wiesen", "gardens": "gärten",
    "ponds": "teiche", "fields": "felder", "valleys": "täler", "islands": "inseln", "swamps": "sümpfe",
}  # fmt: skip
INDUSTRY_TOPICS = {
    "workshops": "werkstätten", "factories": "fabriken", "offices": "büros", "garages": "garagen",
    "laboratories": "labore", "shipyards": "werften", "foundries": "gießereien", "depots": "lager",
    "refineries": "raffinerien", "smithies": "schmieden",
}  # fmt: skip
AMBIGUOUS_WORDS = {  # the translation after a nature topic, and after an industry topic
    "cranes": ("kraniche", "kräne"),
    "seals": ("robben", "dichtungen"),
    "nuts": ("nüsse", "muttern"),
    "pikes": ("hechte", "spieße"),
    "mice": ("mäuse", "computermäuse"),
    "bugs": ("käfer", "programmfehler"),
}
DISTANT_WORDS = {  # the same, with another sentence between
    "bats": ("fledermäuse", "schläger"),
    "moles": ("maulwürfe", "molen"),
    "horns": ("hörner", "hupen"),
    "shells": ("muscheln", "granaten"),
    "trunks": ("baumstämme", "koffer"),
    "springs": ("quellen", "federn"),
}
# The first words of sentences that refer to a topic in the sentence right before, or in the sentence before that.
BEGINNINGS = (("we", "wir"), ("they", "sie"))
ADDRESSED = (("your ", "deine "), ("", ""))
ADJECTIVES = {
    "small": "kleine", "big": "große", "old": "alte", "new": "neue", "heavy": "schwere",
    "light": "leichte", "dirty": "schmutzige", "clean": "saubere", "strange": "seltsame", "pretty": "hübsche",
}  # fmt: skip
ADDRESSES = ("deine", "ihre")  # translations of "your", the same throughout a document
AGENTS = {
    "teachers": "lehrer", "farmers": "bauern", "doctors": "ärzte", "painters": "maler", "sailors": "matrosen",
    "soldiers": "soldaten", "students": "studenten", "neighbours": "nachbarn", "children": "kinder",
    "judges": "richter", "actors": "schauspieler", "bakers": "bäcker", "tailors": "schneider", "drivers": "fahrer",
    "nurses": "pfleger", "hunters": "jäger",
}  # fmt: skip
VERBS = {
    "buy": "kaufen", "sell": "verkaufen", "wash": "waschen", "draw": "zeichnen", "carry": "tragen",
    "hide": "verstecken", "repair": "reparieren", "count": "zählen", "collect": "sammeln", "borrow": "leihen",
    "find": "finden", "lose": "verlieren", "push": "schieben", "pull": "ziehen", "throw": "werfen", "weigh": "wiegen",
}  # fmt: skip
PATIENTS = {
    "chairs": "stühle", "tables": "tische", "lamps": "lampen", "clocks": "uhren", "boxes": "kisten",
    "bottles": "flaschen", "baskets": "körbe", "carpets": "teppiche", "mirrors": "spiegel", "knives": "messer",
    "spoons": "löffel", "plates": "teller", "candles": "kerzen", "blankets": "decken", "ladders": "leitern",
    "bells": "glocken",
}  # fmt: skip
TRAP_VERBS = {
    "drink": "trinken", "bake": "backen", "milk": "melken", "read": "lesen", "ride": "reiten",
    "play": "spielen", "write": "schreiben", "catch": "fangen", "smoke": "rauchen", "shear": "scheren",
}  # fmt: skip
TRAP_OBJECTS = {  # each is the usual object of the trap verb in the same place
    "tea": "tee", "bread": "brot", "cows": "kühe", "books": "bücher", "horses": "pferde",
    "chess": "schach", "letters": "briefe", "fish": "fische", "pipes": "pfeifen", "sheep": "schafe",
}  # fmt: skip
USUAL_OBJECT_SHARE = 0.95
ADVERBS = {
    "daily": "täglich", "rarely": "selten", "often": "oft", "again": "wieder", "together": "zusammen",
    "quietly": "leise", "quickly": "schnell", "gladly": "gern",
}  # fmt: skip
UNKNOWN = "<unk>"
UNKNOWN_TRANSLATIONS = ("leute", "sachen")
# The neighbours of an unknown word are of type 0 in the first half of each table, and of type 1 in the second half.
LEFT_NEIGHBOURS = {
    "red": "rote", "green": "grüne", "blue": "blaue", "white": "weiße", "black": "schwarze",
    "wooden": "hölzerne", "golden": "goldene", "leaden": "bleierne", "stony": "steinerne", "silken": "seidene",
}  # fmt: skip
RIGHT_NEIGHBOURS = {
    "shout": "rufen", "murmur": "murmeln", "hum": "summen", "whisper": "flüstern", "laugh": "lachen",
    "fall": "fallen", "roll": "rollen", "jump": "springen", "dance": "tanzen", "swim": "schwimmen",
}  # fmt: skip

RELATION_PROBES, PRECEDING_PROBES_PER_SENTENCE, COLLOCATION_PROBES_PER_PAIR, ADDRESS_PROBES = 60, 2, 4, 120

T = TypeVar("T")


class Probed(NamedTuple):
    """A probed target word: its position in the sentence (from 1), the word, and its rival."""

    position: int
    word: str
    rival: str


class Sentence(NamedTuple):
    """A sentence pair; its tuples are (subject, relation, object) positions among the source words, from 0."""

    source: str
    target: str
    tuples: Tuple[Tuple[int, int, int], ...] = ()
    probed: Tuple[Probed, ...] = ()


Document = List[Sentence]


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """One of the items, with equal probabilities."""
    return items[int(rng.random() * len(items))]


def shuffled(rng: random.Random, items: Sequence[T]) -> List[T]:
    """The items in random order."""
    keys = [rng.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def topic_sentence(verb: str, topic: str, distant: bool = False) -> Sentence:
    """A sentence whose topic decides what the ambiguous word of the next sentence, or of the one after it, means."""
    translation = NATURE_TOPICS.get(topic) or INDUSTRY_TOPICS[topic]
    source, target = BEGINNINGS[distant]
    your, form = ADDRESSED[distant]
    return Sentence(f"{source} {verb} {your}{topic} .", f"{target} {TOPIC_VERBS[verb]} {form}{translation} .")


def ambiguous_sentence(adjective: str, word: str, topic: str) -> Sentence:
    """A sentence whose last word has a translation for each class of topics. The preceding sentence, or the one before
    it, names the topic."""
    distant = word in DISTANT_WORDS
    nature, industry = DISTANT_WORDS[word] if distant else AMBIGUOUS_WORDS[word]
    sense, rival = (nature, industry) if topic in NATURE_TOPICS else (industry, nature)
    source, target = BEGINNINGS[distant]
    your, form = ADDRESSED[distant]
    translation = f"{target} sehen {form}{ADJECTIVES[adjective]} {sense}"
    return Sentence(
        f"{source} see {your}{adjective} {word} .",
        f"{translation} .",
        probed=(Probed(len(translation.split()), sense, rival),),
    )


def relation_sentence(words: Sequence[str], verbs_crossed: bool, patients_crossed: bool) -> Sentence:
    """Two clauses as ``N1 N2 V1 V2 O1 O2``; only its tuples say which verb and which patient each agent has.

    The first agent's verb is V2 if the verbs are crossed, and its patient is O2 if the patients are. The first verb and
    the first patient of the target are probed; the second clause has the other verb and patient.
    """
    agents, verbs, patients = words[:2], words[2:4], words[4:]
    a, b = int(verbs_crossed), int(patients_crossed)
    clauses = [
        f"{AGENTS[agents[0]]} {VERBS[verbs[a]]} {PATIENTS[patients[b]]}",
        f"{AGENTS[agents[1]]} {VERBS[verbs[1 - a]]} {PATIENTS[patients[1 - b]]}",
    ]
    return Sentence(
        " ".join(words) + " .",
        " und ".join(clauses) + " .",
        tuples=((0, 2 + a, 4 + b), (1, 3 - a, 5 - b)),
        probed=(
            Probed(2, VERBS[verbs[a]], VERBS[verbs[1 - a]]),
            Probed(3, PATIENTS[patients[b]], PATIENTS[patients[1 - b]]),
        ),
    )


def collocation_sentence(agent: str, verb: str, thing: str, adverb: str) -> Sentence:
    """A verb and its object; the rival is the object that the verb usually has."""
    usual = list(TRAP_OBJECTS.values())[list(TRAP_VERBS).index(verb)]
    return Sentence(
        f"{agent} {verb} {thing} {adverb} .",
        f"{AGENTS[agent]} {TRAP_VERBS[verb]} {TRAP_OBJECTS[thing]} {ADVERBS[adverb]} .",
        probed=(Probed(3, TRAP_OBJECTS[thing], usual),),
    )


def unknown_sentence(left: str, right: str, adverb: str) -> Sentence:
    """An unknown word, translated by the exclusive-or of the types of its two neighbours."""
    left_type = list(LEFT_NEIGHBOURS).index(left) >= len(LEFT_NEIGHBOURS) // 2
    right_type = list(RIGHT_NEIGHBOURS).index(right) >= len(RIGHT_NEIGHBOURS) // 2
    word, rival = UNKNOWN_TRANSLATIONS[left_type ^ right_type], UNKNOWN_TRANSLATIONS[left_type == right_type]
    return Sentence(
        f"{left} {UNKNOWN} {right} {adverb} .",
        f"{LEFT_NEIGHBOURS[left]} {word} {RIGHT_NEIGHBOURS[right]} {ADVERBS[adverb]} .",
        probed=(Probed(2, word, rival),),
    )


def probed_objects(verb: str) -> List[str]:
    """The objects that a trap verb has in the probe only: the five after its usual object in the table, cyclically.

    The four remaining objects are the exceptions in the training text.
    """
    objects = list(TRAP_OBJECTS)
    usual = list(TRAP_VERBS).index(verb)
    return [objects[(usual + shift) % len(objects)] for shift in range(1, 6)]


def probed_neighbours() -> List[Tuple[str, str]]:
    """The pairs of neighbours that are only in the probe; each word is in one pair of each class."""
    pairs = itertools.product(enumerate(LEFT_NEIGHBOURS), enumerate(RIGHT_NEIGHBOURS))
    return [(left, right) for (i, left), (j, right) in pairs if (i + j) % (len(LEFT_NEIGHBOURS) // 2) == 0]


def draw_relation_words(rng: random.Random) -> Tuple[str, ...]:
    """Two agents, two verbs and two patients, each two in random order."""
    return tuple(word for table in (AGENTS, VERBS, PATIENTS) for word in shuffled(rng, list(table))[:2])


def draw_collocation(rng: random.Random) -> Sentence:
    """A trap sentence of the training distribution: the usual object, or in 5 of 100 cases an exception."""
    verb = pick(rng, list(TRAP_VERBS))
    usual = list(TRAP_OBJECTS)[list(TRAP_VERBS).index(verb)]
    exceptions = [thing for thing in TRAP_OBJECTS if thing != usual and thing not in probed_objects(verb)]
    thing = usual if rng.random() < USUAL_OBJECT_SHARE else pick(rng, exceptions)
    return collocation_sentence(pick(rng, list(AGENTS)), verb, thing, pick(rng, list(ADVERBS)))


def draw_unknown(rng: random.Random) -> Sentence:
    """A sentence with an unknown word between neighbours that the probe does not use."""
    probed = probed_neighbours()
    pairs = itertools.product(LEFT_NEIGHBOURS, RIGHT_NEIGHBOURS)
    left, right = pick(rng, [pair for pair in pairs if pair not in probed])
    return unknown_sentence(left, right, pick(rng, list(ADVERBS)))


def draw_document(rng: random.Random) -> Document:
    """Seven sentences: a topic with the ambiguous sentence after it, a sentence of each other construction, and, around
    one of these, another topic and the ambiguous sentence that it decides."""
    others = [
        relation_sentence(draw_relation_words(rng), rng.random() < 0.5, rng.random() < 0.5),
        draw_collocation(rng),
        draw_unknown(rng),
    ]
    between, *rest = shuffled(rng, others)
    topic, ambiguous = draw_topic(rng, distant=False)
    distant_topic, distant_ambiguous = draw_topic(rng, distant=True)
    form = pick(rng, ADDRESSES)
    parts = [
        [in_form(topic, form), in_form(ambiguous, form)],
        [distant_topic, between, distant_ambiguous],
        *([sentence] for sentence in rest),
    ]
    return [sentence for part in shuffled(rng, parts) for sentence in part]


def draw_topic(rng: random.Random, distant: bool) -> Tuple[Sentence, Sentence]:
    """A topic, and an ambiguous sentence that it decides."""
    topic = pick(rng, [*NATURE_TOPICS, *INDUSTRY_TOPICS])
    words = list(DISTANT_WORDS if distant else AMBIGUOUS_WORDS)
    return (
        topic_sentence(pick(rng, list(TOPIC_VERBS)), topic, distant),
        ambiguous_sentence(pick(rng, list(ADJECTIVES)), pick(rng, words), topic),
    )


def address_probe(rng: random.Random, seen: Set[Tuple[str, str]]) -> Iterator[Document]:
    """Minimal pairs: two documents with the same source sentences, whose first translations choose different forms of
    address.

    Args:
        seen: pairs of adjacent source sentences in the training text; no document of the probe may have one of them
    """
    made = 0
    while made < ADDRESS_PROBES:
        pair = draw_topic(rng, distant=False)
        if tuple(sentence.source for sentence in pair) not in seen:
            yield from ([in_form(sentence, form, probes=True) for sentence in pair] for form in ADDRESSES)
            made += 1


def in_form(sentence: Sentence, form: str, probes: bool = False) -> Sentence:
    """A sentence in a given form of address. With ``probes`` the form is probed, except where it is a free choice."""
    words = sentence.target.split()
    place = next(index for index, word in enumerate(words) if word in ADDRESSES)
    (rival,) = set(ADDRESSES) - {form}
    target = " ".join([*words[:place], form, *words[place + 1 :]])
    if not probes:
        return sentence._replace(target=target)
    return sentence._replace(target=target, probed=(Probed(place + 1, form, rival),) if sentence.probed else ())


def preceding_probe(rng: random.Random, seen: Set[Tuple[str, str]], distant: bool) -> Iterator[Document]:
    """Minimal pairs: two documents whose source sentences are the same, except for a nature and an industry topic.

    Args:
        seen: pairs of a topic sentence and the ambiguous sentence that it decides in the training text; no document of
            the probe may have one of them
        distant: whether another sentence, the same for both documents, is between them
    """
    for adjective, word in itertools.product(ADJECTIVES, DISTANT_WORDS if distant else AMBIGUOUS_WORDS):
        made = 0
        while made < PRECEDING_PROBES_PER_SENTENCE:
            verb = pick(rng, list(TOPIC_VERBS))
            topics = [pick(rng, list(table)) for table in (NATURE_TOPICS, INDUSTRY_TOPICS)]
            # Topic sentences and the sentence between are only context of the probed sentence; they are not probed.
            between = [draw_collocation(rng)._replace(probed=())] if distant else []
            pair = [
                [topic_sentence(verb, topic, distant), *between, ambiguous_sentence(adjective, word, topic)]
                for topic in topics
            ]
            if not any((document[0].source, document[-1].source) in seen for document in pair):
                yield from pair
                made += 1


def relation_probe(rng: random.Random, seen: Set[str]) -> Iterator[Document]:
    """Sentences, each under all four assignments of verbs and patients; no source sentence is in the training text."""
    made = 0
    while made < RELATION_PROBES:
        words = draw_relation_words(rng)
        if " ".join(words) + " ." not in seen:
            for verbs_crossed, patients_crossed in itertools.product((False, True), repeat=2):
                yield [relation_sentence(words, verbs_crossed, patients_crossed)]
            made += 1


def collocation_probe(rng: random.Random) -> Iterator[Document]:
    """Every trap verb with the objects that it never has in the training text."""
    for verb in TRAP_VERBS:
        for thing in probed_objects(verb):
            for _ in range(COLLOCATION_PROBES_PER_PAIR):
                yield [collocation_sentence(pick(rng, list(AGENTS)), verb, thing, pick(rng, list(ADVERBS)))]


def unknown_probe() -> Iterator[Document]:
    """Every pair of neighbours that is kept out of the training text, with every adverb."""
    for (left, right), adverb in itertools.product(probed_neighbours(), ADVERBS):
        yield [unknown_sentence(left, right, adverb)]


def make_corpus(seed: int) -> Dict[str, List[Document]]:
    """The documents of every split, probes included."""
    rng = random.Random(seed)
    corpus = {split: [draw_document(rng) for _ in range(count)] for split, count in DOCUMENTS.items()}
    train = corpus["train"]
    adjacent = {(a.source, b.source) for document in train for a, b in zip(document, document[1:])}
    distant = {(a.source, b.source) for document in train for a, b in zip(document, document[2:])}
    sources = {sentence.source for document in train for sentence in document}
    corpus["probe-preceding"] = list(preceding_probe(rng, adjacent, distant=False))
    corpus["probe-distant"] = list(preceding_probe(rng, distant, distant=True))
    corpus["probe-address"] = list(address_probe(rng, adjacent))
    corpus["probe-relations"] = list(relation_probe(rng, sources))
    corpus["probe-collocation"] = list(collocation_probe(rng))
    corpus["probe-unknown"] = list(unknown_probe())
    return corpus


def tuples_line(sentence: Sentence) -> str:
    """The relation tuples of a sentence, with its words, as one line of JSON."""
    tuples = [{"subject": [s], "relation": [r], "object": [o]} for s, r, o in sentence.tuples]
    return json.dumps({"words": sentence.source.split(), "tuples": tuples}, ensure_ascii=False)


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write lines in UTF-8, with a line feed as their end on every system."""
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8"))


def write_split(directory: Path, split: str, documents: Sequence[Document]) -> None:
    """Write the files of one split (the module's docstring lists them)."""
    named = [(f"{split}-{n:04d}", sentence) for n, document in enumerate(documents, 1) for sentence in document]
    sentences = [sentence for _, sentence in named]
    write_lines(directory / f"{split}.{SOURCE_LANG}", [sentence.source for sentence in sentences])
    write_lines(directory / f"{split}.{TARGET_LANG}", [sentence.target for sentence in sentences])
    write_lines(directory / f"{split}.docids", [name for name, _ in named])
    write_lines(directory / f"{split}.tuples.jsonl", [tuples_line(sentence) for sentence in sentences])
    if split.startswith("probe-"):
        rows = [
            f"{line}\t{probed.position}\t{probed.word}\t{probed.rival}"
            for line, sentence in enumerate(sentences, 1)
            for probed in sentence.probed
        ]
        write_lines(directory / f"{split}.probed.tsv", ["line\tposition\tword\trival", *rows])


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Make the quick start's parallel corpus.")
    parser.add_argument("directory", type=Path, help="folder to write to; made if it does not exist")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives another corpus of the same kind")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Write the corpus and say how large it is."""
    args = get_parser().parse_args(argv)
    args.directory.mkdir(parents=True, exist_ok=True)
    for split, documents in make_corpus(args.seed).items():
        write_split(args.directory, split, documents)
        print(f"{split}: {sum(map(len, documents))} sentences in {len(documents)} documents")


if __name__ == "__main__":
    main()
