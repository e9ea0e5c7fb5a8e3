"""The records that the operator's endpoints return: times as RFC 3339, money as decimal strings of dollars."""

from typing import Literal

import msgspec

from cadenza.core.money import format_dollars
from cadenza.core.public import to_record
from cadenza.observe.problem import Problem
from cadenza.parts.site.tables.operators import ClassUse
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import LoggedEvent
from cadenza.store.tables.keys import OwnedKey


class OperatorAccount(msgspec.Struct, frozen=True):
    """An account. `granted` is the part of its balance that was not paid for; `available` is the balance less `held`.

    New credit and ended requests pay its debt first.
    """

    id: str
    email: str
    preferred_class: str
    balance: str
    granted: str
    held: str
    available: str
    debt: str
    created_at: str
    is_operator: bool
    suspended_at: str | None


class OperatorAccounts(msgspec.Struct, frozen=True):
    """A page of accounts, by address. `next_after` is the `after` of the next page."""

    data: list[OperatorAccount]
    next_after: str | None
    object: Literal["list"] = "list"


class OperatorKeys(msgspec.Struct, frozen=True):
    """Keys that were found."""

    data: list[OwnedKey]
    object: Literal["list"] = "list"


class AuditEventPage(msgspec.Struct, frozen=True):
    """A page of the audit log, newest first. `next_before` is the `before` of the next page."""

    data: list[LoggedEvent]
    next_before: int | None
    object: Literal["list"] = "list"


class ClassCounters(msgspec.Struct, frozen=True):
    """What was used of one class, and what it cost."""

    class_id: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: str


class OperatorOverview(msgspec.Struct, frozen=True):
    """What is wrong, the gravest first; all accounts together, and what was used since midnight, UTC."""

    problems: list[Problem]
    accounts: int
    operators: int
    suspended: int
    balance: str
    granted: str
    held: str
    today_start: str
    today: list[ClassUse]


class OperatorAccountDetails(msgspec.Struct, frozen=True):
    """One account with its newest keys, its usage of the last 30 days by class, and its newest audit events."""

    account: OperatorAccount
    keys: list[OwnedKey]
    usage: list[ClassCounters]
    sessions: int
    events: list[LoggedEvent]


def view_account(account: Account) -> OperatorAccount:
    available = format_dollars(account.balance_nano - account.held_nano)
    return to_record(OperatorAccount, account, available=available)
