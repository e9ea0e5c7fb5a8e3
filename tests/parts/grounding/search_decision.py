"""Makes the weights of the search decision from labelled messages: `python -m tests.parts.grounding.search_decision`.

It also says how good the decision is on each set of messages, if it learns from the others only. With a message
as argument it shows what each word of it adds to the score.

The weights are those of a logistic regression, found by stochastic gradient descent. The step of a feature shrinks as
the feature is seen (AdaGrad), and all weights shrink after each round. The same messages give the same weights.
"""

import math
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path

import msgspec

from cadenza.parts.grounding.search.intent.question import find_question
from cadenza.parts.grounding.search.intent.scorer import explain, find_features

ROOT = Path(__file__).parents[3]
MESSAGES = Path(__file__).parent / "messages"
WEIGHTS = ROOT / "src" / "cadenza" / "parts" / "grounding" / "search" / "intent" / "weights.txt"
HELD_OUT = "held_out"  # measures, and is never learned from
CORRECTIONS = "set_7"  # written to correct mistakes on the sets, so it would flatter them
TODAY = date(2026, 11, 16)  # the day on which the messages were judged
ROUNDS = 15
STEP = 0.3
FIRST_STEP = 0.1
SHRINK = 0.75
PAIRS_MIN = 2  # a pair of words must be in so many messages
FEATURES_MAX = 10_000
LINE_CHARS = 120

Weights = Mapping[str, float]
Row = tuple[list[tuple[int, float]], bool]  # the places of the features, how much each counts, and what is right


class Labelled(msgspec.Struct, frozen=True):
    """The user messages of a conversation, oldest first, and whether the last one needs the web."""

    asked: list[str]
    needs_web: bool
    why: str = ""


class Example(msgspec.Struct, frozen=True):
    """What the scorer sees of a conversation, and what it should say."""

    features: dict[str, float]
    needs_web: bool


def files_to_learn() -> list[str]:
    return sorted(path.stem for path in MESSAGES.glob("*.toml") if path.stem != HELD_OUT)


def read_messages(name: str) -> list[Labelled]:
    table = tomllib.loads((MESSAGES / f"{name}.toml").read_text(encoding="utf-8"))
    return msgspec.convert(table["messages"], list[Labelled])


def read_examples(name: str) -> list[Example]:
    return [
        Example(find_features(map(find_question, reversed(labelled.asked)), TODAY), labelled.needs_web)
        for labelled in read_messages(name)
    ]


def learn(examples: Sequence[Example]) -> Weights:
    """The weights that matter most, with two digits."""
    seen = Counter(feature for example in examples for feature in example.features)
    common = sorted(feature for feature, times in seen.items() if " " not in feature or times >= PAIRS_MIN)
    known = {feature: place for place, feature in enumerate(common)}
    rows = [
        ([(known[name], count) for name, count in sorted(one.features.items()) if name in known], one.needs_web)
        for one in examples
    ]
    weights = dict(zip(known, descend(rows, len(known)), strict=True))
    best = sorted(known, key=lambda feature: (-abs(weights[feature]) * math.sqrt(seen[feature]), feature))
    rounded = {feature: round(weights[feature], 2) for feature in best[:FEATURES_MAX]}
    return {feature: weight for feature, weight in rounded.items() if weight}


def descend(rows: Sequence[Row], size: int) -> list[float]:
    weights, squares = [0.0] * size, [FIRST_STEP] * size
    order = list(rows)
    chance = random.Random(1)
    for _ in range(ROUNDS):
        chance.shuffle(order)
        for counts, needs_web in order:
            score = sum(weights[place] * count for place, count in counts)
            error = 1 / (1 + math.exp(-min(max(score, -30.0), 30.0))) - needs_web
            for place, count in counts:
                slope = error * count
                squares[place] += slope * slope
                weights[place] -= STEP * slope / math.sqrt(squares[place])
        weights = [weight * SHRINK for weight in weights]
    return weights


def precision_and_recall(decided: Iterable[tuple[bool, bool]]) -> tuple[float, float]:
    """Of pairs of what was decided and what is right."""
    counts = Counter(decided)
    right = counts[True, True]
    return right / (right + counts[True, False]), right / (right + counts[False, True])


def cross_validate(examples: Mapping[str, Sequence[Example]]) -> Iterator[str]:
    """A row for each set: how good the score is with weights that were learned from the other sets."""
    for name in sorted(examples.keys() - {CORRECTIONS}):
        others = examples.keys() - {CORRECTIONS, name}
        weights = learn([one for other in sorted(others) for one in examples[other]])
        own = examples[name]
        scores = [sum(weights.get(word, 0.0) * count for word, count in one.features.items()) for one in own]
        decided = [score > 0 for score in scores]
        needed = [one.needs_web for one in own]
        precision, recall = precision_and_recall(zip(decided, needed, strict=True))
        yield f"| {name} | {len(own)} | {sum(needed)} | {precision:.2f} | {recall:.2f} |"


def write_lines(weights: Weights) -> Iterator[str]:
    """Lines with a weight and the features that have it, the heaviest first."""
    ordered = sorted(weights, key=lambda feature: (-weights[feature], feature))
    for weight, group in groupby(ordered, key=weights.__getitem__):
        line = ""
        for feature in group:
            if line and len(line) + len(feature) + 2 > LINE_CHARS:
                yield line
                line = ""
            line = f"{line}, {feature}" if line else f"{weight:+.2f}: {feature}"
        yield line


def main(message: str | None) -> None:
    say = sys.stdout.write
    if message is not None:
        say("".join(f"{part:+.2f} {feature}\n" for feature, part in explain([find_question(message)], TODAY)))
        return
    examples = {name: read_examples(name) for name in files_to_learn()}
    say("".join(f"{line}\n" for line in cross_validate(examples)))
    weights = learn([one for some in examples.values() for one in some])
    WEIGHTS.write_text("".join(f"{line}\n" for line in write_lines(weights)), encoding="utf-8")
    say(f"{len(weights)} weights, {WEIGHTS.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
