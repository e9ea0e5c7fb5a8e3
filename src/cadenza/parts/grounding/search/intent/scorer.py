"""Scores whether a message needs the web, by its words and pairs of words: above zero it does.

Each word has a weight, and the score is their sum. The weights are in `weights.txt`, which is made from labelled
messages by `tests/parts/grounding/search_decision.py`; they are read with the first score. A short message may continue
the one before ("and in Spain?"), so the words of that one count half. A character of Japanese or Chinese is a word of
its own.
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from importlib.resources import files
from itertools import pairwise

from cadenza.parts.grounding.search.intent.question import Question, without_quotations
from cadenza.parts.grounding.search.words import UNSPACED_CHARS

LETTER = rf"[^\W\d_{UNSPACED_CHARS}]"
TOKEN = re.compile(rf"[{UNSPACED_CHARS}]|\d[\d.,:]*|{LETTER}+(?:['-]{LETTER}+)*|[?？:=+%$€£]")
NAME = re.compile(r"(?<=[a-z,] )[A-Z]\w")
STEM_CHARS = 7  # of each word
FEW_FEATURES = 10  # of a message
USUAL_FEATURES = 30
FOLLOW_UP_WORDS_MAX = 8
FOLLOW_UP_SHARE = 0.5


def score(questions: Iterable[Question], today: date) -> float:
    """`questions` are the user's messages, the last one first."""
    weights = read_weights()
    return sum(weights.get(feature, 0.0) * count for feature, count in find_features(questions, today).items())


def explain(questions: Iterable[Question], today: date) -> list[tuple[str, float]]:
    """What each word adds to the score, the heaviest first."""
    weights = read_weights()
    found = find_features(questions, today).items()
    parts = [(feature, weights[feature] * count) for feature, count in found if feature in weights]
    return sorted(parts, key=lambda part: (-abs(part[1]), part[0]))


def find_features(questions: Iterable[Question], today: date) -> dict[str, float]:
    """The words, pairs of words and signs of form in a conversation, and how much each counts."""
    found = {"=always": 1.0}
    share = 1.0
    for question in questions:
        text = without_quotations(question.text)
        words = list(_words(text, today))
        pairs = [f"{first} {second}" for first, second in pairwise(["^", *words])]
        own = {*words, *pairs, *_form(question, text)}
        count = share * math.sqrt(USUAL_FEATURES / max(len(own), FEW_FEATURES))  # a word counts less among many
        for feature in own:
            found[feature] = found.get(feature, 0.0) + count
        if len(words) > FOLLOW_UP_WORDS_MAX:
            break
        share *= FOLLOW_UP_SHARE
    return found


@functools.cache
def read_weights() -> Mapping[str, float]:
    """Each line of the file has a weight and the features that have it."""
    lines = files(__package__).joinpath("weights.txt").read_text(encoding="utf-8").splitlines()
    parts = (line.partition(": ") for line in lines)
    return {feature: float(weight) for weight, _, listed in parts for feature in listed.split(", ")}


def _words(text: str, today: date) -> Iterator[str]:
    for token in TOKEN.findall(text.lower().replace("’", "'")):
        if token[0].isdecimal():
            yield _number(token.rstrip(".,:"), today)
        else:
            yield token.removesuffix("'s")[:STEM_CHARS]


def _number(token: str, today: date) -> str:
    if len(token) == 4 and token.isdecimal() and 1000 < int(token) < 2100:
        return "#present" if int(token) >= today.year - 1 else "#past"
    return "#decimal" if "." in token else "#"


def _form(question: Question, text: str) -> Iterator[str]:
    if NAME.search(text):
        yield "=name"
    if question.urls:
        yield "=url"
    if question.has_code:
        yield "=code"
    if len(text) < len(question.text):
        yield "=quotation"
    if "\n" in text:
        yield "=lines"
