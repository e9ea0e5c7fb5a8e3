"""Accounts for operators: search, one account, and what can be done to it. Unknown ids are 404."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.responses import Response

from cadenza.control.account.accounts import resume_account, set_operator, suspend_account
from cadenza.control.email import messages as notices
from cadenza.control.money.credit import correct_credit, give_credit
from cadenza.control.money.idempotency import Unconfirmed, make_reference
from cadenza.control.operator import AccountDetails, get_account_by_id, get_details, search_accounts
from cadenza.control.sign_in.links import print_link
from cadenza.core.errors import ControlError
from cadenza.core.money import format_dollars, parse_dollars
from cadenza.store.tables.accounts import Account
from cadenza.web.account.proof import require_proof, with_proof
from cadenza.web.errors import BadForm, Missing
from cadenza.web.operator.views import (
    OperatorAccount,
    OperatorAccountDetails,
    OperatorAccounts,
    view_account,
    view_details,
)
from cadenza.web.render import redirect
from cadenza.web.routes import Access, Endpoint, Routes, get, post
from cadenza.web.visit import Visit

SEARCH_CHARS_MAX = 254


class AccountSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the address, and the address after which the page begins."""

    search: str = ""
    after: str = ""


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Credit to add: dollars above zero, like 5.00, and a note for the statement. A reference makes it idempotent."""

    amount: str
    note: str = ""
    reference: str = ""


class Correction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Credit to take back: dollars above zero, like 5.00, and the reason, which the owner sees.

    A reference makes it idempotent.
    """

    amount: str
    reason: str
    reference: str = ""


class OperatorRole(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether the account is an operator."""

    is_operator: bool


class ResetLink(msgspec.Struct, frozen=True):
    """A link that sets a new password. It works once, for an hour."""

    link: str


class Button(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form with a button only."""


async def accounts_page(visit: Visit) -> Response:
    asked = visit.query(AccountSearch)
    found = await search_accounts(visit.context.store, asked.search[:SEARCH_CHARS_MAX], asked.after)
    return visit.page("operator/accounts.html", found=found, search=asked.search, is_first=not asked.after)


async def account_page(visit: Visit) -> Response:
    return await _show(visit)


async def _show(visit: Visit, status: int = 200, error: str = "", link: str = "") -> Response:
    details = await _details(visit)
    is_own = details.account.id == visit.account.id
    references = [make_reference() for _ in range(2)]  # so that a form that is sent twice takes effect once
    return visit.page(
        "operator/account.html", status, found=details, is_own=is_own, error=error, link=link, references=references
    )


async def suspend_form(visit: Visit) -> Response:
    await visit.form(Button)
    return await _act(visit, suspend, "account-suspended")


async def resume_form(visit: Visit) -> Response:
    await visit.form(Button)
    return await _act(visit, resume, "account-resumed")


async def operator_form(visit: Visit) -> Response:
    form = await visit.form(OperatorRole)
    return await _act(visit, lambda visit: set_role(visit, form), "saved")


async def grant_form(visit: Visit) -> Response:
    form = await visit.form(Grant)
    return await _act(visit, lambda visit: grant(visit, form), "credit-added")


async def correct_form(visit: Visit) -> Response:
    form = await visit.form(Correction)
    return await _act(visit, lambda visit: correct(visit, form), "credit-taken-back")


async def link_form(visit: Visit) -> Response:
    await visit.form(Button)
    return await _show(visit, link=(await make_link(visit)).link)


async def _act(visit: Visit, act: Callable[[Visit], Awaitable[object]], note: str) -> Response:
    try:
        await act(visit)
    except Unconfirmed:
        raise
    except (ControlError, BadForm) as error:
        return await _show(visit, 400, error.message)
    return redirect(f"/operator/accounts/{visit.request.path_params['account_id']}", note)


async def list_accounts(visit: Visit) -> OperatorAccounts:
    asked = visit.query(AccountSearch)
    found = await search_accounts(visit.context.store, asked.search[:SEARCH_CHARS_MAX], asked.after)
    return OperatorAccounts([view_account(account) for account in found.accounts], found.next_after)


async def get_account(visit: Visit) -> OperatorAccountDetails:
    return view_details(await _details(visit))


async def suspend(visit: Visit) -> OperatorAccount:
    require_proof(visit)
    account = await _account(visit)
    changed = await suspend_account(visit.context.store, account.email, visit.account.email, visit.now_ms)
    visit.context.send_notice(account.email, notices.SUSPENDED)
    return view_account(changed)


async def resume(visit: Visit) -> OperatorAccount:
    require_proof(visit)
    account = await _account(visit)
    changed = await resume_account(visit.context.store, account.email, visit.account.email, visit.now_ms)
    visit.context.send_notice(account.email, notices.RESUMED)
    return view_account(changed)


async def set_role(visit: Visit, role: OperatorRole) -> OperatorAccount:
    """Needs a recent proof, like the link that sets a password: a stolen session must not make itself permanent."""
    require_proof(visit)
    account, by = await _account(visit), visit.account.email
    is_operator = role.is_operator
    changed = await set_operator(visit.context.store, account.email, by, visit.now_ms, is_operator=is_operator)
    visit.context.send_notice(account.email, notices.ROLE_GIVEN if is_operator else notices.ROLE_TAKEN)
    return view_account(changed)


async def grant(visit: Visit, given: Grant) -> OperatorAccount:
    require_proof(visit)
    account, by = await _account(visit), visit.account.email
    amount_nano, store = _amount(given.amount), visit.context.store
    done = await give_credit(store, account.email, amount_nano, given.note, visit.now_ms, by, given.reference)
    visit.context.send_notice(account.email, notices.CREDIT_ADDED, format_dollars(amount_nano))
    return view_account(done.account)


async def correct(visit: Visit, given: Correction) -> OperatorAccount:
    require_proof(visit)
    account, by = await _account(visit), visit.account.email
    amount_nano, store = _amount(given.amount), visit.context.store
    await correct_credit(store, account.email, -amount_nano, given.reason, by, visit.now_ms, given.reference)
    visit.context.send_notice(account.email, notices.CREDIT_TAKEN, format_dollars(amount_nano))
    return await _shown(visit)


async def make_link(visit: Visit) -> ResetLink:
    require_proof(visit)
    account, by = await _account(visit), visit.account.email
    return ResetLink(visit.base_url + await print_link(visit.context.store, account.email, "reset", by, visit.now_ms))


async def _shown(visit: Visit) -> OperatorAccount:
    return view_account(await _account(visit))


async def _account(visit: Visit) -> Account:
    found = await get_account_by_id(visit.context.store, visit.request.path_params["account_id"])
    if found is None:
        raise Missing
    return found


async def _details(visit: Visit) -> AccountDetails:
    found = await get_details(visit.context.store, visit.request.path_params["account_id"], visit.now_ms)
    if found is None:
        raise Missing
    return found


def _amount(text: str) -> int:
    try:
        amount_nano = parse_dollars(text.strip().removeprefix("$"))
    except ValueError as error:
        raise BadForm(f"The amount: {error}.") from None
    if amount_nano == 0:
        raise BadForm("The amount must be above zero.")
    return amount_nano


ONE = "/operator/accounts/{account_id}"
ROUTES: Routes = (
    get("/operator/accounts", accounts_page, Access.OPERATOR),
    get(ONE, account_page, Access.OPERATOR),
    post(f"{ONE}/suspend", with_proof(suspend_form, ONE), Access.OPERATOR),
    post(f"{ONE}/resume", with_proof(resume_form, ONE), Access.OPERATOR),
    post(f"{ONE}/role", with_proof(operator_form, ONE), Access.OPERATOR),
    post(f"{ONE}/grants", with_proof(grant_form, ONE), Access.OPERATOR),
    post(f"{ONE}/corrections", with_proof(correct_form, ONE), Access.OPERATOR),
    post(f"{ONE}/reset-link", with_proof(link_form, ONE), Access.OPERATOR),
    Endpoint(
        "GET",
        "/operator/accounts",
        "Search accounts by their address",
        list_accounts,
        query=AccountSearch,
        returns=OperatorAccounts,
        access=Access.OPERATOR,
    ),
    Endpoint("GET", ONE, "Show one account", get_account, None, OperatorAccountDetails, Access.OPERATOR),
    Endpoint("POST", f"{ONE}/suspend", "Suspend an account", suspend, None, OperatorAccount, Access.OPERATOR),
    Endpoint("POST", f"{ONE}/resume", "Resume a suspended account", resume, None, OperatorAccount, Access.OPERATOR),
    Endpoint(
        "PUT", f"{ONE}/role", "Make or unmake an operator", set_role, OperatorRole, OperatorAccount, Access.OPERATOR
    ),
    Endpoint("POST", f"{ONE}/grants", "Add credit", grant, Grant, OperatorAccount, Access.OPERATOR),
    Endpoint("POST", f"{ONE}/corrections", "Take credit back", correct, Correction, OperatorAccount, Access.OPERATOR),
    Endpoint(
        "POST", f"{ONE}/reset-link", "Make a link that sets a new password", make_link, None, ResetLink, Access.OPERATOR
    ),
)
