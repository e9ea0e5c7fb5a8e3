"""The tokenizer o200k: the published vocabulary, the counts of another implementation, and a bounded effort."""

import base64
import hashlib
import json
import time
from pathlib import Path

import pytest

from cadenza.core import o200k

PUBLISHED_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"  # of o200k_base.tiktoken
COUNTS = Path(__file__).with_name("o200k_counts.jsonl")  # by rs-bpe 0.1: the count, a text, and how often it repeats
RUNS = ["a", "-", " ", "\t", "\u3000", "音", "\r\n", " x", "a\u2028"]
CHARS = 1024


def test_the_vocabulary_is_the_published_one() -> None:
    """Unpacked and written as OpenAI publishes it, with each token in base64 and its number, it is that file."""
    tokens = o200k.unpack(o200k.FILE.read_bytes())
    lines = (f"{base64.b64encode(token).decode()} {number}\n" for number, token in enumerate(tokens))
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == PUBLISHED_SHA256


def test_counts_are_those_of_another_implementation() -> None:
    """Prose in many scripts, code, markup, odd characters and long runs have exactly its counts."""
    encode = o200k.load().encode_ordinary
    lines = [json.loads(line) for line in COUNTS.read_text().splitlines()]
    assert len(lines) > 100
    assert [line for line in lines if len(encode(line[1] * line[2])) != line[0]] == []


def cpu_s(text: str) -> float:
    """The least of several measurements."""
    encode, times = o200k.load().encode_ordinary, list[float]()
    for _ in range(9):
        began_s = time.thread_time()
        encode(text)
        times.append(time.thread_time() - began_s)
    return min(times)


@pytest.mark.parametrize("unit", RUNS)
def test_the_effort_for_a_run_does_not_grow_with_its_square(unit: str) -> None:
    """A part of 16 K characters without a word takes far less than 256 times the CPU time of one of 1 K."""
    run = unit * (CHARS // len(unit))
    assert cpu_s(run * 16) < 64 * cpu_s(run)
