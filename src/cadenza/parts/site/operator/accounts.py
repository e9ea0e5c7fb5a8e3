"""Accounts for operators: search, one account, and what can be done to it. Unknown ids are 404.

What changes an account needs a recent proof: a stolen session must not make itself permanent.
"""

import msgspec
from starlette.responses import Response

from cadenza.control.account.accounts import resume_account, suspend_account
from cadenza.control.money.credit import correct_credit, give_credit
from cadenza.control.money.idempotency import make_reference
from cadenza.core.money import format_dollars
from cadenza.core.public import to_record
from cadenza.parts.site import mailer as notices
from cadenza.parts.site.accounts import set_operator
from cadenza.parts.site.errors import Missing
from cadenza.parts.site.operator.fields import read_amount, read_days
from cadenza.parts.site.operator.reading import (
    AccountDetails,
    AccountsPage,
    get_account_by_id,
    get_details,
    search_accounts,
)
from cadenza.parts.site.operator.views import (
    ClassCounters,
    OperatorAccount,
    OperatorAccountDetails,
    OperatorAccounts,
    view_account,
)
from cadenza.parts.site.routes import Routes, endpoint, form, get
from cadenza.parts.site.sign_in.links import print_link
from cadenza.parts.site.visit import Visit
from cadenza.store.tables.accounts import Account

SEARCH_CHARS_MAX = 254
ONE = "/operator/accounts/{account_id}"


class AccountSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the address, and the address after which the page begins."""

    search: str = ""
    after: str = ""


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Credit to add: dollars above zero, like 5.00, and a note for the statement. A reference makes it idempotent.

    After `expires_days` what is left of it is taken back; empty: never.
    """

    amount: str
    note: str = ""
    reference: str = ""
    expires_days: str = ""


class CreditCorrection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Credit to take back: dollars above zero, like 5.00, and the reason, which the owner sees.

    A reference makes it idempotent.
    """

    amount: str
    reason: str
    reference: str = ""


async def accounts_page(visit: Visit) -> Response:
    asked = visit.query(AccountSearch)
    found = await _search(visit, asked)
    return visit.page("operator/accounts.html", found=found, search=asked.search, is_first=not asked.after)


async def account_page(visit: Visit, link: str = "") -> Response:
    details = await _details(visit)
    is_own = details.account.id == visit.account.id
    references = [make_reference() for _ in range(2)]  # so that a form that is sent twice takes effect once
    return await visit.page_with_panels(
        ONE, "operator/account.html", found=details, is_own=is_own, link=link, references=references
    )


async def list_accounts(visit: Visit, asked: AccountSearch) -> OperatorAccounts:
    found = await _search(visit, asked)
    return OperatorAccounts([view_account(account) for account in found.accounts], found.next_after)


async def get_account(visit: Visit) -> OperatorAccountDetails:
    found = await _details(visit)
    return OperatorAccountDetails(
        account=view_account(found.account),
        keys=found.keys,
        usage=[to_record(ClassCounters, counters, class_id=class_id) for class_id, counters in found.usage.groups],
        sessions=found.sessions,
        events=found.audit_events,
    )


async def suspend(visit: Visit) -> OperatorAccount:
    account = await account_of(visit)
    changed = await suspend_account(visit.store, account.email, visit.operator, visit.now_ms)
    visit.context.send_notice(account.email, notices.SUSPENDED)
    return view_account(changed)


async def resume(visit: Visit) -> OperatorAccount:
    account = await account_of(visit)
    changed = await resume_account(visit.store, account.email, visit.operator, visit.now_ms)
    visit.context.send_notice(account.email, notices.RESUMED)
    return view_account(changed)


async def set_role(visit: Visit, *, is_operator: bool) -> None:
    account, by = await account_of(visit), visit.operator
    await set_operator(visit.store, account.email, by, visit.now_ms, is_operator=is_operator)
    visit.context.send_notice(account.email, notices.ROLE_GIVEN if is_operator else notices.ROLE_TAKEN)


async def grant(visit: Visit, given: Grant) -> OperatorAccount:
    account, by, amount_nano = await account_of(visit), visit.operator, read_amount(given.amount)
    days = read_days(given.expires_days)
    done = await give_credit(
        visit.store, account.email, amount_nano, given.note, visit.now_ms, by, given.reference, days
    )
    visit.context.send_notice(account.email, notices.CREDIT_ADDED, format_dollars(amount_nano))
    return view_account(done.account)


async def correct(visit: Visit, given: CreditCorrection) -> OperatorAccount:
    account, by, amount_nano = await account_of(visit), visit.operator, read_amount(given.amount)
    await correct_credit(visit.store, account.email, -amount_nano, given.reason, by, visit.now_ms, given.reference)
    visit.context.send_notice(account.email, notices.CREDIT_TAKEN, format_dollars(amount_nano))
    return view_account(await account_of(visit))


async def make_link(visit: Visit) -> Response:
    """A link that sets a new password. It works once, for an hour."""
    account, by = await account_of(visit), visit.operator
    path = await print_link(visit.store, account.email, "reset", by, visit.now_ms)
    return await account_page(visit, visit.base_url + path)


async def _search(visit: Visit, asked: AccountSearch) -> AccountsPage:
    return await search_accounts(visit.store, asked.search[:SEARCH_CHARS_MAX], asked.after)


async def _details(visit: Visit) -> AccountDetails:
    found = await get_details(visit.store, visit.path_param("account_id"), visit.now_ms)
    if found is None:
        raise Missing
    return found


async def account_of(visit: Visit) -> Account:
    found = await get_account_by_id(visit.store, visit.path_param("account_id"))
    if found is None:
        raise Missing
    return found


ROUTES: Routes = (
    get("/operator/accounts", accounts_page),
    get(ONE, account_page),
    form(f"{ONE}/suspend", suspend, ONE, "account-suspended", on_error=account_page, needs_proof=True),
    form(f"{ONE}/resume", resume, ONE, "account-resumed", on_error=account_page, needs_proof=True),
    form(f"{ONE}/role", set_role, ONE, "saved", on_error=account_page, needs_proof=True),
    form(f"{ONE}/grants", grant, ONE, "credit-added", on_error=account_page, needs_proof=True),
    form(f"{ONE}/corrections", correct, ONE, "credit-taken-back", on_error=account_page, needs_proof=True),
    form(f"{ONE}/reset-link", make_link, ONE, needs_proof=True),
    endpoint("GET", "/operator/accounts", "Search accounts by their address", list_accounts, "operator.accounts:read"),
    endpoint("GET", ONE, "Show one account", get_account, "operator.accounts:read"),
    endpoint("POST", f"{ONE}/suspend", "Suspend an account", suspend, "operator.accounts:write", needs_proof=True),
    endpoint(
        "POST", f"{ONE}/resume", "Resume a suspended account", resume, "operator.accounts:write", needs_proof=True
    ),
    endpoint("POST", f"{ONE}/grants", "Add credit", grant, "operator.credit:write", needs_proof=True),
    endpoint("POST", f"{ONE}/corrections", "Take credit back", correct, "operator.credit:write", needs_proof=True),
)
