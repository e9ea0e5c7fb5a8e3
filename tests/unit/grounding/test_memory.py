"""Which notes go with a question, and that they keep to the limit of tokens."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cadenza.control.account.memory import NOTE_CHARS_MAX, NOTES_MAX, add_note
from cadenza.core.tokens import Tokenizer, estimate_tokens
from cadenza.grounding.memory import NOTE_OVERHEAD_TOKENS, recall
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
        await add_note(store, account_id, text, number)


async def test_few_notes_are_all_given(store: Store) -> None:
    """All notes of the account that fit are given, oldest first, whatever the question is; no others are."""
    await write(store, TEXTS)
    await write(store, ["foreign"], OTHER)
    for question in ("When does the shop open?", "Hello!", ""):
        assert await recall(store, OWNER, question, ROOM) == TEXTS
    assert await recall(store, OTHER, "When does the shop open?", ROOM) == ["foreign"]


async def test_no_notes_give_nothing(store: Store) -> None:
    """An account without notes, and one that does not exist, have nothing to recall."""
    assert await recall(store, OWNER, "Hello!", ROOM) == []
    assert await recall(store, "acct_nobody", "Hello!", ROOM) == []


async def test_the_notes_that_suit_the_question_come_first(store: Store) -> None:
    """Where not all fit, those with the words of the question are given."""
    await write(store, TEXTS)
    room = cost(TEXTS[0])
    assert await recall(store, OWNER, "When is the shop open?", room) == [TEXTS[0]]
    assert await recall(store, OWNER, "What is the name of my CATS?", room) == [TEXTS[1]]


async def test_the_newest_notes_fill_what_is_left(store: Store) -> None:
    """After the notes that suit the question come others, newest first; without a fitting word, only these."""
    await write(store, TEXTS)
    room = cost(TEXTS[1]) + cost(TEXTS[3])
    assert await recall(store, OWNER, "my cat", room) == [TEXTS[1], TEXTS[3]]
    assert await recall(store, OWNER, "quarks", room) == [TEXTS[3], TEXTS[2]]


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
    picked = await recall(store, OWNER, "what is number 17?", 2000)
    assert picked[0] == texts[17]
    assert 3 <= len(picked) < NOTES_MAX
    assert Tokenizer().count("\n".join(picked)) <= 2000


@pytest.mark.parametrize(
    "text",
    [
        "The shop opens at nine, except on Sundays and on public holidays.",
        "Das Geschäft öffnet um neun Uhr, außer an Sonn- und Feiertagen.",
        "商店每天早上九点开门，星期日和节假日除外。",
        "Магазин открывается в девять, кроме воскресений и праздников.",
        "Call +1 (555) 010-4477 or write to ada@example.org, 9-18 h 😀👩",
        "{'opens': '09:00', 'closes': '18:00', 'days': [1, 2, 3, 4, 5, 6]}",
    ],
)
def test_the_estimate_is_not_too_low(text: str) -> None:
    """Ordinary text of any script has no more tokens than are estimated."""
    assert Tokenizer().count(text) <= cost(text)
