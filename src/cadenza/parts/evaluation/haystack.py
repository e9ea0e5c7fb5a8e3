"""Long texts for questions about one sentence in them: filler from a seed, with needles at given places."""

import random

import msgspec

from cadenza.core.content import Content

PLACEHOLDER = "{haystack}"
WORDS_MAX = 200_000
NEEDLES_MAX = 50

PLACES = ("the mill", "the east quay", "the old ferry", "the chapel", "the bakery", "the school", "the north gate")
PEOPLE = ("the keeper", "a fisher", "the clerk", "two carpenters", "the miller", "a teacher", "the ferryman")
DEEDS = ("mended a net", "counted the barrels", "painted a door", "sorted the post", "swept the steps", "cut the hedge")
TIMES = ("Before breakfast", "At noon", "In the late afternoon", "After the rain", "Towards evening", "At dawn")
WEATHER = ("the wind came from the west", "the fog stayed", "the tide was low", "it was still", "clouds gathered")


class Needle(Content, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence and its place, as a share of the text: 0 is the beginning, 1 the end."""

    text: str
    at: float


class Haystack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """About this many words of filler, the same for the same seed."""

    seed: int
    words: int
    needles: tuple[Needle, ...] = ()


def check_haystack(haystack: Haystack) -> None:
    if not 1 <= haystack.words <= WORDS_MAX:
        raise ValueError(f"`words` of a haystack is from 1 to {WORDS_MAX}")
    if len(haystack.needles) > NEEDLES_MAX or not all(0 <= needle.at <= 1 for needle in haystack.needles):
        raise ValueError(f"a haystack has at most {NEEDLES_MAX} needles, each with `at` from 0 to 1")


def build_haystack(haystack: Haystack) -> str:
    """Paragraphs of short sentences about a village, without numbers and names."""
    chance = random.Random(haystack.seed)  # noqa: S311 filler, not a secret
    sentences, words = list[str](), 0
    while words < haystack.words:
        time, person, deed = chance.choice(TIMES), chance.choice(PEOPLE), chance.choice(DEEDS)
        sentence = f"{time} {person} {deed} near {chance.choice(PLACES)}, and {chance.choice(WEATHER)}."
        sentences.append(sentence)
        words += sentence.count(" ") + 1
    places = [(round(needle.at * len(sentences)), needle.text) for needle in haystack.needles]
    for place, text in sorted(places, reverse=True):
        sentences.insert(place, text)
    return "\n\n".join(" ".join(sentences[start : start + 8]) for start in range(0, len(sentences), 8))
