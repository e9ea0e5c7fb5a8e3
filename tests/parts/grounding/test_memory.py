"""Which notes go with a question, and that they keep to the limit of tokens."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cadenza.core.records import COMMAND_LINE, Owner
from cadenza.core.tokens import Tokenizer, estimate_tokens
from cadenza.parts.grounding.memory import NOTE_OVERHEAD_TOKENS, recall
from cadenza.parts.grounding.notes import NOTE_CHARS_MAX, NOTES_MAX, add_note, remove_note
from cadenza.store.sqlite.store import SqliteStore
from cadenza.store.store import Store
from cadenza.store.tables import accounts
from cadenza.store.tables.accounts import Account
from tests.migrated import copy_migrated_store

OWNER, OTHER = "acct_a", "acct_b"
ROOM = 10_000
TEXTS = [
    "Our shop opens at nine and closes at six.",
    "The cat is called Mina.",
    "I write British English.",
    "The shop sells pianos, and repairs them too.",
]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A store with two accounts."""
    path = tmp_path / "cadenza.db"
    copy_migrated_store(path)
    opened = SqliteStore(path)
    for account_id in (OWNER, OTHER):
        account = Account(account_id, f"{account_id}@example.org", "forte", 0, 0, 1)
        await opened.transact(lambda tx, account=account: accounts.add(tx, account, "hash"))  # type: ignore[misc]
    yield opened
    await opened.close()


def cost(note: str) -> int:
    return estimate_tokens(note) + NOTE_OVERHEAD_TOKENS


async def write(store: Store, texts: list[str], account_id: str = OWNER) -> None:
    for number, text in enumerate(texts):
        await add_note(store, Owner(account_id, "a@example.org"), text, number)


async def test_the_notes_that_fit_are_given(store: Store) -> None:
    """Wishes with any question, facts where a word is shared or the person who asks is meant; none of others."""
    await write(store, TEXTS)
    await write(store, ["foreign"], OTHER)
    assert await recall(store, OWNER, "When does the shop open?", ROOM) == [TEXTS[0], TEXTS[2], TEXTS[3]]
    assert await recall(store, OWNER, "Why is the sky blue?", ROOM) == [TEXTS[2]]
    assert await recall(store, OWNER, "What do you know about me?", ROOM) == TEXTS
    assert await recall(store, OTHER, "When does the shop open?", ROOM) == []


@pytest.mark.parametrize(
    "question", ["Hello!", "hi there", "Thanks a lot, that was great!", "Good morning", "ok", "Danke"]
)
async def test_small_talk_gets_no_note(store: Store, question: str) -> None:
    """Not even a wish: there is nothing to answer."""
    await write(store, TEXTS)
    assert await recall(store, OWNER, question, ROOM) == []


LABELLED = [  # a note, a question, and whether the note fits it
    ("Answer in French.", "How far is the moon?", True),
    ("Call me Ann.", "Write a haiku about rain.", True),
    ("I prefer metric units.", "How tall is the Eiffel tower?", True),
    ("My name is Ann.", "Draft a reply to this complaint.", True),
    ("Never use emoji.", "Announce the new shop on a poster.", True),
    ("Keep it short.", "What causes tides?", True),
    ("Please explain like I am a beginner.", "What is a monad?", True),
    ("I am a vegetarian.", "What should I cook tonight?", True),
    ("I am a vegetarian.", "What is the capital of Peru?", False),
    ("I live in Oslo.", "Where do I live?", True),
    ("I live in Oslo.", "Which museums are there in Oslo?", True),
    ("I live in Oslo.", "Sort a list in Python.", False),
    ("My daughter is six.", "Recommend a book for my daughter.", True),
    ("My daughter is six.", "Translate 'good night' to Dutch.", False),
    ("The office closes at 17:00 on Fridays.", "When is the office open?", True),
    ("The office closes at 17:00 on Fridays.", "When does it close on Friday?", True),
    ("The office closes at 17:00 on Fridays.", "What is 12 times 14?", False),
    ("Our product is called Velmora.", "Write a slogan for our product.", True),
    ("Our product is called Velmora.", "What is photosynthesis?", False),
    ("The project deadline is 3 May.", "How many days are left until the deadline?", True),
    ("The project deadline is 3 May.", "Who wrote Faust?", False),
    ("I have a nut allergy.", "Is this snack safe for me?", True),
    ("I have a nut allergy.", "How do planes fly?", False),
    ("I drive a diesel van.", "Which oil fits my van?", True),
    ("I drive a diesel van.", "Summarize this text: the treaty was signed in 1648.", False),
    ("I drive a diesel van.", "How do I reverse a string in Python?", False),
    ("Mina is the cat.", "What do cats eat?", True),
    ("We deploy with Ansible.", "Why does the Ansible playbook fail?", True),
    ("We deploy with Ansible.", "Give me three synonyms of happy.", False),
    ("Use tabs in code.", "Thanks!", False),
]


async def test_labelled_questions_get_the_notes_that_fit(store: Store) -> None:
    """The rule decides at least 28 of 30 pairs as a person did."""
    wrong = list[tuple[str, str]]()
    for number, (note, question, fits) in enumerate(LABELLED):
        added = await add_note(store, Owner(OWNER, "a@example.org"), note, number)
        if (await recall(store, OWNER, question, ROOM) == [note]) is not fits:
            wrong.append((note, question))
        await remove_note(store, COMMAND_LINE, added.id, number)
    assert len(wrong) <= 2, wrong


async def test_the_notes_that_suit_the_question_come_first(store: Store) -> None:
    """Where not all fit, those with the words of the question are given."""
    await write(store, TEXTS)
    room = cost(TEXTS[0])
    assert await recall(store, OWNER, "When is the shop open?", room) == [TEXTS[0]]
    assert await recall(store, OWNER, "What is the name of my CATS?", room) == [TEXTS[1]]


async def test_of_notes_that_suit_alike_the_newer_comes_first(store: Store) -> None:
    """A newer note about the same thing is likelier to be true still."""
    texts = ["The cat is called Mina.", "Something else here.", "The cat is called Nora."]
    await write(store, texts)
    assert await recall(store, OWNER, "cat", cost(texts[0])) == [texts[2]]


async def test_a_note_that_does_not_fit_is_passed_over(store: Store) -> None:
    """A shorter one after it may still fit."""
    texts = ["cat", "cat " * 100]
    await write(store, texts)
    assert await recall(store, OWNER, "cat", cost("cat")) == ["cat"]
    assert await recall(store, OWNER, "cat", 1) == []


@pytest.mark.parametrize("question", ['"', "NEAR(a b)", "cat* OR", "\0", "x" * 1_000_000, "猫"])
async def test_any_question_can_be_asked(store: Store, question: str) -> None:
    """Words that mean something to the index, and very long questions, do no harm."""
    await write(store, TEXTS)
    assert len(await recall(store, OWNER, question, cost(TEXTS[0]))) == 1


async def test_many_long_notes_keep_to_the_limit(store: Store) -> None:
    """With as many notes as there can be, what is given has no more tokens than allowed, by a real count."""
    words = "piano forte mezzo adagio presto cadenza rest fermata "
    texts = [f"{number} {words * 20}"[:NOTE_CHARS_MAX].strip() for number in range(NOTES_MAX)]
    await write(store, texts)
    picked = await recall(store, OWNER, "what is my number 17?", 2000)
    assert picked[0] == texts[17]
    assert 3 <= len(picked) < NOTES_MAX
    assert Tokenizer().count("\n".join(picked)) <= 2000
