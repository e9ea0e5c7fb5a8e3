"""Access tokens: what a script sends to /platform/api instead of the cookie of a browser. Create, list, revoke, find.

A token is shown once; only its digest and first characters are stored. It has the scopes that were named when it was
made, expires, and fails from its next request on when it is revoked, in every process: no process caches it. It also
fails while its account is suspended. Scopes that begin with `operator.` need an operator's account, at each request.
"""

import secrets
from collections.abc import Sequence
from typing import Annotated

import msgspec

from cadenza.control.money.idempotency import Reference, make_command
from cadenza.core.codes import TOKEN_PREFIX, TOKEN_SHAPE, digest_key, display_prefix, is_well_formed, make_token
from cadenza.core.config_keys import one_line, one_of, whole
from cadenza.core.errors import ControlError, Unknown
from cadenza.core.orders import Shown, check_order, copied
from cadenza.core.records import Actor, Operator, Owner
from cadenza.core.spans import DAY_MS
from cadenza.parts.site.tables import access_tokens
from cadenza.parts.site.tables.access_tokens import Token
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts, audit_events
from cadenza.store.tables.accounts import Account
from cadenza.store.tables.audit_events import AuditEvent

OPERATOR = "operator."  # begins the scopes that only an operator's token may have
SCOPES = {  # the routes of the site name them
    "account:read": "Read the account and its preferences",
    "account:write": "Change preferences",
    "keys:read": "List API keys",
    "keys:write": "Create, change and revoke API keys",
    "usage:read": "Read usage",
    "credit:read": "Read the balance, the statement and the payments",
    "credit:write": "Redeem vouchers, begin payments, and set the notice of a low balance",
    "memory:read": "Read notes",
    "memory:write": "Add, change and delete notes",
    "operator.service:read": "Read the overview, the load, the ledger check and the audit log",
    "operator.service:write": "Start a ledger check",
    "operator.accounts:read": "Read all accounts and requests",
    "operator.accounts:write": "Suspend and resume accounts",
    "operator.credit:read": "Read the report of a month",
    "operator.credit:write": "Add credit, take it back, and refund requests",
    "operator.keys:read": "Find API keys of all accounts",
    "operator.keys:write": "Revoke API keys of all accounts",
    "operator.classes:read": "Read what serves each class",
    "operator.classes:write": "Roll back a class",
}
DAYS_MAX = 365
DAYS_USUAL = 90
NAME_CHARS_MAX = 100
ACTIVE_TOKENS_MAX = 100
TOUCH_MS = 60_000  # the least time between two writes of the last use


# fmt: off
class TokenOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The token to create. A reference makes it idempotent."""

    name: Annotated[str, one_line(NAME_CHARS_MAX), Shown("Name", metavar="TEXT"), "What the token is for."] = ""
    scopes: Annotated[Sequence[str], one_of(*SCOPES), Shown("Scopes", "scope", "SCOPE"), "Like keys:write; repeat it for several."] = ()
    days: Annotated[int, whole(1, DAYS_MAX), Shown("Expires", "expires", "DAYS"), "From 1 to 365 days."] = DAYS_USUAL
    reference: Reference = ""
# fmt: on


class TokenUser(msgspec.Struct, frozen=True):
    """A live token, and the account that it acts for."""

    token: Token
    account: Account

    def may(self, scope: str) -> bool:
        return scope in self.token.scopes


async def create_token(store: Store, owner: Owner, order: TokenOrder, now_ms: int) -> tuple[str, Token]:
    """Return the secret, which is not stored, and the record of the token."""
    account = await accounts.get(store, owner.account_id)
    assert account, "an owner has an account"
    ordered, scopes = check_order(order), _check_scopes(order.scopes, account)
    secret, days = make_token(), order.days
    token = copied(
        Token,
        order,
        scopes=tuple(scopes),
        id="tok_" + secrets.token_urlsafe(18),
        account_id=account.id,
        prefix=display_prefix(secret),
        created_at=now_ms,
        expires_at=now_ms + days * DAY_MS,
    )
    former = (account.id, order.name, scopes, days)
    command = make_command(owner, "token.create", (account.id, ordered), order.reference, token.id, former)

    def create(tx: Transaction) -> None:
        claim = command.claim(tx, now_ms)
        if claim.earlier:
            raise ControlError(
                f"The same form or reference made the token {claim.earlier.subject} before. A token is shown only "
                "once: if you did not keep it, revoke it and create another."
            )
        if not claim.is_new:
            return
        accounts.lock_account(tx, account.id)
        if access_tokens.count_active(tx, account.id, now_ms) >= ACTIVE_TOKENS_MAX:
            raise ControlError(f"An account has at most {ACTIVE_TOKENS_MAX} active tokens: revoke one first.")
        access_tokens.add(tx, token, digest_key(secret.encode()))
        detail = f"{token.prefix} {' '.join(scopes)}, expires {days}"
        audit_events.add(tx, AuditEvent(now_ms, owner, "token.create", account.id, token.id, detail))

    await command.run(lambda: store.transact(create))
    return secret, token


async def list_tokens(store: Store, owner: Owner, now_ms: int) -> list[Token]:
    """The tokens of an account, newest first, including revoked and expired ones."""
    return await access_tokens.list_for_account(store, owner.account_id, now_ms)


async def revoke_token(store: Store, by: Actor, text: str, now_ms: int) -> Token:
    """Revoke a token: an owner one of the account by its id, an operator any by its id, first characters or itself."""
    wanted = display_prefix(text) if text.startswith(TOKEN_PREFIX) else text

    def revoke(tx: Transaction) -> Token:
        if not (wanted.isascii() and wanted.isprintable()):
            found = []
        elif isinstance(by, Operator):
            found = access_tokens.find_by_prefix_or_id(tx, wanted, now_ms)
        else:
            found = [token for token in access_tokens.find_by_id(tx, text, now_ms) if token.account_id == by.account_id]
        if not found:
            raise Unknown("token", "There is no such token. 'cadenza token list' shows the tokens of an account.")
        if len(found) > 1:
            ids = ", ".join(token.id for token in found)
            raise ControlError(f"More than one token begins with {wanted}: name it by id, one of {ids}.")
        [token] = found
        if token.state != "revoked":
            access_tokens.revoke(tx, token.id, now_ms)
            audit_events.add(tx, AuditEvent(now_ms, by, "token.revoke", token.account_id, token.id, token.prefix))
        return msgspec.structs.replace(token, state="revoked")

    return await store.transact(revoke)


async def find_token(store: Store, secret: bytes, now_ms: int) -> TokenUser | None:
    """The live token with this secret; None if it is malformed, unknown, revoked, expired, or of a suspended account.

    It is found by its digest, so the time that the look-up takes tells nothing about any other token.
    """
    if not is_well_formed(secret, TOKEN_SHAPE):
        return None
    found = await access_tokens.find(store, digest_key(secret), now_ms)
    if found is None:
        return None
    token, account = found
    if token.state != "active" or account.suspended_at is not None:
        return None
    if now_ms - (token.last_used_at or 0) >= TOUCH_MS:
        await access_tokens.touch(store, token.id, now_ms)
    return TokenUser(token, account)


def scopes_for(account: Account) -> dict[str, str]:
    """The scopes that a token of this account may have, and what each allows."""
    return {name: text for name, text in SCOPES.items() if account.is_operator or not name.startswith(OPERATOR)}


def _check_scopes(given: Sequence[str], account: Account) -> list[str]:
    """In the order of SCOPES, each once."""
    for scope in given:
        if scope not in scopes_for(account):
            raise ControlError(f"Only the token of an operator may have the scope {scope!r}.")
    if not given:
        raise ControlError(f"A token needs at least one scope: {', '.join(scopes_for(account))}.")
    return [scope for scope in SCOPES if scope in given]
