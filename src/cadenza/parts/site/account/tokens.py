"""Access tokens of the account: the list, a new token, and revoking one. Forms only: no token can make another.

The secret of a new token is in the reply to the form that created it and nowhere else, like that of a key.
"""

from starlette.responses import Response

from cadenza.control.money.idempotency import make_reference
from cadenza.core.orders import typed_values
from cadenza.parts.site.mailer import TOKEN_CREATED
from cadenza.parts.site.routes import Routes, form, get
from cadenza.parts.site.tokens import (
    DAYS_USUAL,
    NAME_CHARS_MAX,
    TokenOrder,
    create_token,
    list_tokens,
    revoke_token,
    scopes_for,
)
from cadenza.parts.site.visit import Visit

PAGE = "/settings/tokens"
EXPIRIES = {days: f"After {days} days" for days in ("7", "30", "90", "365")}
assert str(DAYS_USUAL) in EXPIRIES


async def list_page(visit: Visit) -> Response:
    found = await list_tokens(visit.store, visit.owner, visit.now_ms)
    shows_all = visit.query_fields.get("show") == "all"
    tokens = [token for token in found if shows_all or token.state == "active"]
    return visit.page("tokens.html", tokens=tokens, shows_all=shows_all, more=len(found) - len(tokens))


async def new_page(visit: Visit) -> Response:
    return visit.page(
        "token_new.html",
        form=visit.typed or typed_values(TokenOrder),
        scopes=scopes_for(visit.account),
        expiries=EXPIRIES,
        name_chars_max=NAME_CHARS_MAX,
        reference=make_reference(),  # so that a form that is sent twice makes one token
    )


async def create(visit: Visit, order: TokenOrder) -> Response:
    await visit.limit_changes("tokens")
    secret, token = await create_token(visit.store, visit.owner, order, visit.now_ms)
    visit.context.send_notice(visit.account.email, TOKEN_CREATED, f"{token.prefix}…")
    return visit.page("token_created.html", secret=secret, token=token)


async def revoke(visit: Visit) -> None:
    await visit.limit_changes("tokens")
    await revoke_token(visit.store, visit.owner, visit.path_param("token_id"), visit.now_ms)


ROUTES: Routes = (
    get(PAGE, list_page),
    get(f"{PAGE}/new", new_page),
    form(PAGE, create, f"{PAGE}/new", on_error=new_page, needs_proof=True),
    form(PAGE + "/{token_id}/revoke", revoke, PAGE, "token-revoked"),
)
