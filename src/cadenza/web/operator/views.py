"""The records that the operator's endpoints return: times as RFC 3339, money as decimal strings of dollars."""

from typing import Literal

import msgspec

from cadenza.control.operator import AccountDetails, KeySummary, ServiceOverview
from cadenza.core.formats import rfc3339, rfc3339_or_none
from cadenza.core.money import format_dollars
from cadenza.core.usage_report import Group
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import WrittenAuditEvent


class OperatorAccount(msgspec.Struct, frozen=True):
    """An account. `available` is its balance less what is held. New credit and ended requests pay its debt first."""

    id: str
    email: str
    preferred_class: str
    balance: str
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


class OperatorKey(msgspec.Struct, frozen=True):
    """A key of any account. That of the web chat cannot be revoked."""

    id: str
    account_id: str
    email: str
    name: str
    prefix: str
    scopes: list[str]
    state: Literal["active", "revoked", "expired"]
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    is_web: bool


class OperatorKeys(msgspec.Struct, frozen=True):
    """Keys that were found."""

    data: list[OperatorKey]
    object: Literal["list"] = "list"


class AuditEventView(msgspec.Struct, frozen=True):
    """One act of the audit log: who did what to whom, and when."""

    id: int
    at: str
    actor: str
    act: str
    account_id: str | None
    email: str | None
    subject: str
    detail: str


class AuditEventPage(msgspec.Struct, frozen=True):
    """A page of the audit log, newest first. `next_before` is the `before` of the next page."""

    data: list[AuditEventView]
    next_before: int | None
    object: Literal["list"] = "list"


class ClassCounters(msgspec.Struct, frozen=True):
    """What was used of one class, and what it cost."""

    class_id: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: str


class TodayCounters(msgspec.Struct, frozen=True):
    """What was used of one class today. `failed` requests ended because of the service or an upstream."""

    class_id: str
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cost: str


class OperatorOverview(msgspec.Struct, frozen=True):
    """All accounts together, and what was used since midnight, UTC."""

    accounts: int
    operators: int
    suspended: int
    balance: str
    held: str
    today_start: str
    today: list[TodayCounters]


class OperatorAccountDetails(msgspec.Struct, frozen=True):
    """One account with its newest keys, its usage of the last 30 days by class, and its newest acts."""

    account: OperatorAccount
    keys: list[OperatorKey]
    usage: list[ClassCounters]
    sessions: int
    acts: list[AuditEventView]


def view_account(account: Account) -> OperatorAccount:
    return OperatorAccount(
        id=account.id,
        email=account.email,
        preferred_class=account.preferred_class,
        balance=format_dollars(account.balance_nano),
        held=format_dollars(account.held_nano),
        available=format_dollars(account.balance_nano - account.held_nano),
        debt=format_dollars(account.debt_nano),
        created_at=rfc3339(account.created_at),
        is_operator=bool(account.is_operator),  # SQLite has no booleans
        suspended_at=rfc3339_or_none(account.suspended_at),
    )


def view_key(key: KeySummary) -> OperatorKey:
    return OperatorKey(
        id=key.id,
        account_id=key.account_id,
        email=key.email,
        name=key.name,
        prefix=key.prefix,
        scopes=list(key.scopes),
        state=key.state,
        created_at=rfc3339(key.created_at),
        expires_at=rfc3339_or_none(key.expires_at),
        last_used_at=rfc3339_or_none(key.last_used_at),
        is_web=key.is_web,
    )


def view_audit_event(act: WrittenAuditEvent) -> AuditEventView:
    return AuditEventView(
        act.id, rfc3339(act.at), act.actor, act.event, act.account_id, act.email, act.subject, act.detail
    )


def view_overview(found: ServiceOverview) -> OperatorOverview:
    today = [
        TodayCounters(
            one.class_id,
            one.requests,
            one.failed,
            one.prompt_tokens,
            one.completion_tokens,
            format_dollars(one.cost_nano),
        )
        for one in found.today
    ]
    return OperatorOverview(
        accounts=found.totals.accounts,
        operators=found.totals.operators,
        suspended=found.totals.suspended,
        balance=format_dollars(found.totals.balance_nano),
        held=format_dollars(found.totals.held_nano),
        today_start=rfc3339(found.today_start_ms),
        today=today,
    )


def view_details(found: AccountDetails) -> OperatorAccountDetails:
    return OperatorAccountDetails(
        account=view_account(found.account),
        keys=[view_key(key) for key in found.keys],
        usage=[_view_group(group) for group in found.usage.groups],
        sessions=found.sessions,
        acts=[view_audit_event(act) for act in found.audit_events],
    )


def _view_group(group: Group) -> ClassCounters:
    used = group.counters
    return ClassCounters(
        group.of, used.requests, used.prompt_tokens, used.completion_tokens, format_dollars(used.cost_nano)
    )
