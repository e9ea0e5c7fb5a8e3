"""No step that sees a client's bytes costs more than six times as much for four times the bytes."""

import random
import re
import subprocess
import sys

import pytest

from tests.hostile.grammar import Grammar, Growth, Recipe
from tests.hostile.search import Target, search
from tests.hostile.search_targets import TARGETS

CPU_S = "6"
PLANTED_CPU_S = 20.0
SEED = "49"
LETTERS = Grammar((b"a b",), (b"a", b"b", b'"', b",", b" "))
OPEN_QUOTE = re.compile(rb'"[^;]*;')  # begins again at each quote of a text without an end


class Kept:
    """A text that is kept elsewhere, so that Python cannot add to it in place."""

    text = ""


def with_regex(data: bytes) -> None:
    OPEN_QUOTE.sub(b"", data)


def with_loop(data: bytes) -> None:
    words = data.split()
    for word in words:
        for other in words:
            if other is not word and not other:
                return


def with_concatenation(data: bytes) -> None:
    kept = Kept()
    for one in data.decode():
        kept.text += one


def with_in(data: bytes) -> None:
    seen = list[int]()
    for at in range(0, len(data), 2):
        if at not in seen:
            seen.append(at)


def with_join(data: bytes) -> None:
    b"".join(bytes([one]) for one in data)


def with_steps(data: bytes) -> None:
    for one in data:
        if one == 0:
            return


KIB = 1024
PLANTED = {
    "regular expression": (Target(with_regex, LETTERS, 16 * KIB), "times the time"),
    "loop": (Target(with_loop, LETTERS, 2 * KIB), "times the lines"),
    "concatenation": (Target(with_concatenation, LETTERS, 128 * KIB), "times the time"),
    "in": (Target(with_in, LETTERS, 8 * KIB), "times the time"),
    "steps without a bound": (Target(with_steps, LETTERS, 256 * KIB, is_on_loop=True), "lines on the event loop"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_fault_is_found(case: str) -> None:
    """A quadratic regular expression, loop, concatenation or `in` is found, and steps without a bound."""
    target, rule = PLANTED[case]
    [fault] = search("planted", target, random.Random(SEED), cpu_s=PLANTED_CPU_S, faults_max=1).faults
    assert rule in fault.rule


def test_what_is_linear_is_no_fault() -> None:
    """A function whose cost grows with its input is searched without a finding."""
    searched = search("linear", Target(with_join, LETTERS, 64 * 1024), random.Random(SEED), cpu_s=1)
    assert searched.tried > 20
    assert searched.faults == []


def test_a_recipe_can_be_replayed() -> None:
    """What a finding prints makes the same bytes again, at each size."""
    recipe = Recipe(b'{"a":[0]}', (Growth(6, b"[{|}]{|},", 0.5), Growth(2, b"k{i}", 0.4)))
    assert Recipe.unpack(recipe.pack()) == recipe
    assert recipe.at(49) == b'{"k0k1k2k3a":[[[]],0]}'


@pytest.mark.parametrize("name", TARGETS)
def test_each_target_reads_a_sample(name: str) -> None:
    """No target refuses all of its samples: a search of refusals would find nothing."""
    target = TARGETS[name]
    failures = list[Exception]()
    for sample in target.grammar.samples:
        try:
            target.run(target.prepare(Recipe(sample).at(len(sample))))
        except Exception as failure:  # noqa: BLE001 any: it is shown
            failures.append(failure)
    assert len(failures) < len(target.grammar.samples), failures


def test_no_input_costs_more_than_its_share() -> None:
    """Some seconds of search, half from a fixed seed and half from a fresh one, find no input that breaks the rule."""
    command = [sys.executable, "-m", "tests.hostile.search", "--seconds", CPU_S, "--seed", SEED, "--seed", "fresh"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)  # noqa: T201 the fresh seed
    assert done.returncode == 0, done.stdout + done.stderr
