"""The moves of many requests, made together: the money of an account moves in one statement, and rows of a kind in one.

What is not usual (a hold that the account cannot pay in full, an idempotency key, a hold of which only the store
knows) is moved by itself, in the same transaction and by the same rules (ledger.py). Accounts are taken in the order
of their ids, so that no two processes wait for each other. A hold and its end take 65 µs so, where one by one they
take 98.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from cadenza.store import ledger
from cadenza.store.ledger import End, Ended, Held, Hold, Insufficient, OpenHold, Repeated
from cadenza.store.statements import Executor

Answer = Held | Insufficient | Repeated | Ended


class Move(msgspec.Struct, frozen=True):
    """A hold to be taken, or the end of one, with what this process knows of that."""

    what: Hold | End
    known: OpenHold | None = None


class Rows:
    """What is to be inserted, for the money that has been moved."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.holds: list[dict[str, Any]] = []
        self.charges: list[dict[str, Any]] = []
        self.usage: list[dict[str, Any]] = []

    def insert(self, connection: Executor) -> None:
        for statement, rows in (
            (ledger.ADD_HOLD, self.holds),
            (ledger.ADD_ENTRY, self.charges),
            (ledger.ADD_USAGE, self.usage),
        ):
            if rows:
                statement.change_each(connection, rows)
                rows.clear()


def apply(connection: Executor, moves: Sequence[Move], owner: str) -> list[Answer]:
    """The answer to each, in their order."""
    rows, answers = Rows(owner), dict[int, Answer]()
    by_account = sorted(((move.what.account_id, place) for place, move in enumerate(moves)), key=itemgetter(0))
    for account_id, group in groupby(by_account, key=itemgetter(0)):
        _apply_to_account(connection, account_id, {place: moves[place] for _, place in group}, rows, answers)
    rows.insert(connection)
    return [answers[place] for place in range(len(moves))]


def _apply_to_account(
    connection: Executor, account_id: str, moves: dict[int, Move], rows: Rows, answers: dict[int, Answer]
) -> None:
    ended, taken, others = (
        dict[int, tuple[End, OpenHold]](),
        dict[int, tuple[Hold, OpenHold]](),
        dict[int, Hold | End](),
    )
    for place, move in moves.items():
        what, known = move.what, move.known
        if isinstance(what, Hold):
            if what.idempotency_digest:
                others[place] = what
            else:
                taken[place] = (what, OpenHold.of(what, what.allowance_tokens))
        elif known is None:
            others[place] = what
        elif ledger.END_KNOWN_HOLD.change(connection, ledger.ending(what)) == 1:
            ended[place] = (what, known)
        else:
            answers[place] = Ended(is_first=False)
    if (ended or taken) and not _move_together(connection, account_id, ended, taken, rows, answers):
        for place, (end, known) in ended.items():
            answers[place] = ledger.settle(connection, known, end)
        others |= {place: hold for place, (hold, _) in taken.items()}
    for place, other in others.items():
        if isinstance(other, Hold):
            answers[place] = ledger.take_hold(connection, other, rows.owner)
        else:
            rows.insert(connection)  # its hold may be among them
            answers[place] = ledger.end_hold(connection, other)


def _move_together(
    connection: Executor,
    account_id: str,
    ended: dict[int, tuple[End, OpenHold]],
    taken: dict[int, tuple[Hold, OpenHold]],
    rows: Rows,
    answers: dict[int, Answer],
) -> bool:
    """False, and nothing moved, where the account cannot pay for all of it."""
    charges = {place: known.charge(end.usage) if end.usage else 0 for place, (end, known) in ended.items()}
    amount_nano = sum([new.amount_nano for _, new in taken.values()])
    left = ledger.MOVE.row(
        connection,
        {
            "account": account_id,
            "charge": sum(charges.values()),
            "back": sum([known.amount_nano for _, known in ended.values()]),
            "amount": amount_nano,
            "least": sum([hold.least_nano(new.amount_nano) for hold, new in taken.values()]),
        },
    )
    if left is None:
        return False
    for place, (end, known) in ended.items():
        if end.usage:
            rows.charges.append(ledger.charge_row(known, end, charges[place]))
        rows.usage.append(ledger.usage_row(known, end, charges[place]))
        answers[place] = Ended(is_first=True, charged_nano=charges[place])
    left_nano = int(left[0]) + amount_nano
    for place, (hold, new) in taken.items():
        left_nano -= new.amount_nano  # as if each were taken after the one before it
        rows.holds.append(ledger.hold_row(new, rows.owner))
        answers[place] = Held(hold.allowance_tokens, left_nano)
    return True
