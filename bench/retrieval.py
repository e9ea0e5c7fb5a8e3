"""Which answers are in what is sent of an attached file, and how many tokens are sent. `python -m bench.retrieval`.

Fifty questions about twenty files (`retrieval_files`), each as the service reads and cuts them for a class with a
window of 128,000 tokens. No model is asked: a question counts as answered if the words that answer it are sent.
"""

import statistics
import sys
from collections.abc import Iterator

import msgspec

from bench.retrieval_files import OFFICE, PLAIN, Maker, Question, questions_by_file
from cadenza.core.tokens import Tokenizer
from cadenza.parts.grounding.files.formats.read import read_document
from cadenza.parts.grounding.files.messages import TokenBudget
from cadenza.parts.grounding.files.passages import rank_document
from cadenza.parts.grounding.files.questions import AskedOfFiles
from cadenza.parts.grounding.files.shown import share_out

ROOM_TOKENS = 64_000


class Retrieved(msgspec.Struct, frozen=True):
    """What was sent for a question."""

    question: Question
    shown: str
    tokens: int
    has_answer: bool


def retrieve(made: Maker) -> Iterator[Retrieved]:
    tokenizer, room = Tokenizer(), TokenBudget(ROOM_TOKENS, ROOM_TOKENS)
    for file, questions in questions_by_file(made):
        sections = read_document(file.name, "", file.data)
        for one in questions:
            ranked = rank_document("", sections, AskedOfFiles(one.text, one.before), room, tokenizer.count)
            [excerpt] = share_out([ranked], ROOM_TOKENS)
            sent = " ".join(excerpt.text.split())
            has_answer = all(" ".join(words.split()) in sent for words in one.needs)
            yield Retrieved(one, excerpt.shown, tokenizer.count(excerpt.text), has_answer)


def main() -> None:
    made = Maker()
    made.make([*PLAIN, *OFFICE])
    found = list(retrieve(made))
    for one in found:
        mark = " " if one.has_answer else "MISSING"
        asked, shown = f"{one.question.file:18} {one.question.text[:60]:60}", f"{one.shown[:60]:60}"
        sys.stdout.write(f"{one.tokens:7,}  {asked}  {shown} {mark}\n")
    tokens = [one.tokens for one in found]
    answered = sum(one.has_answer for one in found)
    median, total = statistics.median(tokens), sum(tokens)
    sys.stdout.write(f"{answered} of {len(found)} answers are sent; tokens: median {median:,.0f}, together {total:,}\n")


if __name__ == "__main__":
    main()
