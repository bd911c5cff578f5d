"""Tasks in the definitions of RULER (arXiv 2404.06654, section 3 and appendix B), made by our own code.

A task makes a problem of any size from a random generator and a text; `evaluate.problems` finds the
size that fills the context. Scores are RULER's: the share of the expected strings that the answer
contains, or, for questions, whether it contains any.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from uuid import UUID

from magicpig_cli.errors import UsageError
from magicpig_cli.evaluate.words import distinct_pairs, pair


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes
    ----------
    document, question : str
        What `ask` would be given.
    answer_start : str
        Put into the model's mouth, as RULER does, so that it answers in a form that can be scored.
    answers : tuple of str
        Expected strings.
    max_tokens : int
        RULER's limit of the answer.
    any_of_them : bool
        One expected string is enough (questions); otherwise their recall counts.
    """

    document: str
    question: str
    answer_start: str
    answers: tuple[str, ...]
    max_tokens: int
    any_of_them: bool = False

    def score(self, answer: str) -> float:
        """0 to 1: RULER's string match, blind to case."""
        found = [expected.lower() in answer.lower() for expected in self.answers]
        return float(any(found)) if self.any_of_them else sum(found) / len(found)


@dataclass(frozen=True, slots=True)
class Haystack:
    """The text that needles lie in."""

    sentences: tuple[str, ...]
    vocabulary: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Haystack:
        """Sentences and different words of a text.

        Raises
        ------
        UsageError
            If there are too few.
        """
        flat = re.sub(r"\s+", " ", text)
        sentences = tuple(s for s in re.split(r"(?<=[.!?]) ", flat) if 20 <= len(s) <= 400)
        words = tuple(sorted({w.lower() for w in re.findall(r"\b[^\W\d_]{4,9}\b", flat)}))
        if len(sentences) < 20 or len(words) < 200:
            raise UsageError(
                f"the text has {len(sentences)} sentences and {len(words)} different words, but tasks need "
                "20 and 200; give a longer one with --text"
            )
        return cls(sentences, words)

    def passage(self, random: Random, count: int) -> list[str]:
        """`count` sentences in a row, from anywhere; after the last comes the first."""
        first = random.randrange(len(self.sentences))
        return [self.sentences[(first + i) % len(self.sentences)] for i in range(count)]


Maker = Callable[[Random, Haystack, int, int], Problem]


def scatter(random: Random, sentences: list[str], needles: list[str]) -> str:
    """The needles, in random order, between sentences."""
    places = sorted(random.randint(0, len(sentences)) for _ in needles)
    parts = list(sentences)
    for place, needle in zip(reversed(places), random.sample(needles, len(needles)), strict=True):
        parts.insert(place, needle)
    return " ".join(parts)


def _value(random: Random, kind: str) -> str:
    if kind == "uuid":
        return str(UUID(int=random.getrandbits(128), version=4))
    return pair(random) if kind == "word" else str(random.randint(10**6, 10**7 - 1))


def _needles(
    random: Random, haystack: Haystack, size: int, kind: str, keys: int, values: int, queries: int
) -> Problem:
    names = distinct_pairs(random, keys)
    facts = [(name, _value(random, kind)) for name in names for _ in range(values)]
    what = f"magic {kind}s"
    lines = [f"One of the special magic {kind}s for {name} is: {value}." for name, value in facts]
    asked = names[:queries]
    listed = asked[0] if queries == 1 else ", ".join(asked[:-1]) + f", and {asked[-1]}"
    many = queries * values > 1
    text = scatter(random, haystack.passage(random, size), lines)
    ask = f"What are all the special {what}" if many else f"What is the special magic {kind}"
    start = f"The special {what} for {listed} mentioned in the provided text are"
    single = f"The special magic {kind} for {listed} mentioned in the provided text is"
    return Problem(
        f"Some special {what} are hidden within the following text. Make sure to memorize them. I will quiz "
        f"you about the {kind}s afterwards.\n{text}\n",
        f"{ask} for {listed} mentioned in the provided text?",
        start if many else single,
        tuple(value for name, value in facts if name in asked),
        128,
    )


def niah(random: Random, haystack: Haystack, size: int, number: int) -> Problem:
    """One key with one value; numbers, words and uuids in turns."""
    return _needles(random, haystack, size, ("number", "word", "uuid")[number % 3], 1, 1, 1)


def multikey(random: Random, haystack: Haystack, size: int, number: int) -> Problem:
    """Four keys with one value each, one asked for."""
    return _needles(random, haystack, size, "number", 4, 1, 1)


def multivalue(random: Random, haystack: Haystack, size: int, number: int) -> Problem:
    """One key with four values, all asked for."""
    return _needles(random, haystack, size, "number", 1, 4, 1)


def multiquery(random: Random, haystack: Haystack, size: int, number: int) -> Problem:
    """Four keys with one value each, all asked for."""
    return _needles(random, haystack, size, "number", 4, 1, 4)


_NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."  # as RULER's
)
_CHAIN = 5


def vt(random: Random, haystack: Haystack, size: int, number: int) -> Problem:
    """One chain of five variables, four hops, in noise; a short example comes first."""

    def block(noise: int) -> tuple[str, str, list[str]]:
        names: list[str] = []
        while len(names) < _CHAIN:
            name = "".join(random.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=5))
            if name not in names:
                names.append(name)
        value = str(random.randint(10_000, 99_999))
        lines = [f"VAR {names[0]} = {value}."]
        lines += [f"VAR {b} = VAR {a}." for a, b in pairwise(names)]
        parts = [_NOISE] * noise
        # In the order of the chain, as RULER's own.
        for place, line in zip(
            sorted((random.randint(0, noise) for _ in lines), reverse=True), reversed(lines), strict=True
        ):
            parts.insert(place, line)
        return "\n".join(parts), value, names

    def task(text: str) -> str:
        ask = "Memorize and track the chain(s) of variable assignment hidden in the following text."
        return f"{ask}\n\n{text}\n"

    def start(value: str) -> str:
        return (
            "According to the chain(s) of variable assignment in the text above, "
            f"{_CHAIN} variables are assigned the value {value}, they are:"
        )

    ask = "Find all variables that are assigned the value {} in the text above."
    example, example_value, example_names = block(5)
    text, value, names = block(size)
    shown = f"{task(example)}Question: {ask.format(example_value)} Answer: {start(example_value)} "
    return Problem(
        shown + " ".join(example_names) + "\n\n" + task(text),
        ask.format(value),
        start(value),
        tuple(names),
        30,
    )


_COMMON = 10


def cwe(random: Random, haystack: Haystack, size: int, number: int) -> Problem:
    """Ten words 30 times each among `size` others 3 times each; a short example comes first."""

    def block(others: int, often: int, seldom: int) -> tuple[str, list[str]]:
        if _COMMON + others > len(haystack.vocabulary):
            raise UsageError(
                f"cwe needs {_COMMON + others:,} different words, but the text has "
                f"{len(haystack.vocabulary):,}; give a longer one with --text, or a smaller --ctx"
            )
        words = random.sample(haystack.vocabulary, _COMMON + others)
        entries = words[:_COMMON] * often + words[_COMMON:] * seldom
        random.shuffle(entries)
        return " ".join(f"{i + 1}. {word}" for i, word in enumerate(entries)), words[:_COMMON]

    def task(entries: str) -> str:
        return (
            "Below is a numbered list of words. In these words, some appear more often than others. "
            f"Memorize the ones that appear most often.\n{entries}\n"
        )

    ask = "What are the 10 most common words in the above list?"
    start = "The top 10 words that appear most often in the list are:"
    example, example_words = block(10, 3, 1)
    listed = " ".join(f"{i + 1}. {word}" for i, word in enumerate(example_words))
    entries, common = block(size, 30, 3)
    shown = f"{task(example)}Question: {ask} Answer: {start} {listed}\n\n"
    return Problem(shown + task(entries), ask, start, tuple(common), 120)


_ZETA_2 = 1.6449340668482264


def fwe(random: Random, haystack: Haystack, size: int, number: int) -> Problem:
    """Coded words whose frequencies fall as 1/rank^2 (RULER's alpha 2): noise, then the three asked for."""
    codes: list[str] = []
    while len(codes) < 60:
        word = "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=6))
        if word not in codes:
            codes.append(word)
    entries: list[str] = []
    for rank, word in enumerate(["...", *codes], start=1):
        entries += [word] * round(size / rank**2 / _ZETA_2)
    random.shuffle(entries)
    return Problem(
        "Read the following coded text and track the frequency of each coded word. Find the three most "
        f"frequently appeared coded words.\n{' '.join(entries)}\n",
        "Do not provide any explanation. Please ignore the dots '...'. What are the three most frequently "
        "appeared words in the above coded text?",
        "According to the coded text above, the three most frequently appeared words are:",
        tuple(codes[:3]),
        50,
    )


_FACTS = (
    ("Who keeps the {} lighthouse?", "The {} lighthouse stands on the north shore. It is kept by {}."),
    ("Who built the {} bridge?", "The {} bridge crosses the river twice. It was built by {}."),
    ("Who wrote The {} Letters?", "The {} Letters were printed only once. They were written by {}."),
    ("Who owns the {} mill?", "The {} mill has stood still for years. It is owned by {}."),
)
_FIRST = (
    "Ada",
    "Bruno",
    "Clara",
    "Dario",
    "Edith",
    "Felix",
    "Greta",
    "Hugo",
    "Irma",
    "Jonas",
    "Karin",
    "Lukas",
)
_LAST = (
    "Abel",
    "Brandt",
    "Corso",
    "Dunmore",
    "Eklund",
    "Farrow",
    "Giles",
    "Hobart",
    "Jarvis",
    "Keller",
    "Lund",
)


def qa(random: Random, haystack: Haystack, size: int, number: int) -> Problem:
    """A question that one passage answers, among passages of the text and three about something alike."""
    names = [f"{a} {b}" for a, b in zip(random.sample(_FIRST, 4), random.sample(_LAST, 4), strict=True)]
    subjects = [key.replace("-", " ").title() for key in distinct_pairs(random, 4)]
    question, fact = random.choice(_FACTS)
    passages = [fact.format(*both) for both in zip(subjects, names, strict=True)]
    passages += [" ".join(haystack.passage(random, 4)) for _ in range(size)]
    random.shuffle(passages)
    listed = "\n\n".join(f"Document {i + 1}:\n{passage}" for i, passage in enumerate(passages))
    rule = "Answer the question based on the given documents. Only give me the answer."
    return Problem(
        f"{rule}\n\nThe following are given documents.\n\n{listed}\n",
        f"{rule} {question.format(subjects[0])}",
        "Answer:",
        (names[0],),
        32,
        any_of_them=True,
    )


TASKS: dict[str, Maker] = {
    "niah": niah,
    "multikey": multikey,
    "multivalue": multivalue,
    "multiquery": multiquery,
    "vt": vt,
    "cwe": cwe,
    "fwe": fwe,
    "qa": qa,
}
