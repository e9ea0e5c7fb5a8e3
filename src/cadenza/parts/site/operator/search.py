"""One search for operators: an account, a key, a completion id or a request id. What was found is opened or listed.

It is a POST, because an operator may paste a leaked key, and a URL must not contain a secret.
"""

from urllib.parse import quote

from starlette.responses import Response

from cadenza.control.keys import find_keys
from cadenza.control.requests import explain_one, find_requests
from cadenza.core.codes import KEY_PREFIX, display_prefix
from cadenza.parts.site.operator.reading import get_account_by_id, search_accounts
from cadenza.parts.site.render import redirect
from cadenza.parts.site.routes import Routes, form, get
from cadenza.parts.site.visit import Visit

PAGE = "/operator/search"


async def search_page(visit: Visit) -> Response:
    return visit.page("operator/search.html", text="", requests=[], keys=[], accounts=[])


async def search(visit: Visit, text: str) -> Response:
    """By a part of an address, an id or a key. A single account or request is opened."""
    text = text.strip()
    if account := await get_account_by_id(visit.store, text):
        return redirect(f"/operator/accounts/{account.id}")
    keys = await find_keys(visit.store, text, visit.now_ms)
    requests = [] if keys or not text or "@" in text else await find_requests(visit.store, text, visit.now_ms)
    if len(requests) == 1:
        return redirect(f"/operator/requests/{requests[0].completion_id}")
    if not (keys or requests or "@" in text) and (refused := await explain_one(visit.store, text, visit.now_ms)):
        return redirect(f"/operator/requests/{quote(refused.completion_id or refused.request_id or '', safe='')}")
    is_key = text.startswith(KEY_PREFIX)
    accounts = [] if keys or requests or is_key or not text else (await search_accounts(visit.store, text)).accounts
    if len(accounts) == 1:
        return redirect(f"/operator/accounts/{accounts[0].id}")
    shown = display_prefix(text) if is_key else text
    return visit.page("operator/search.html", text=shown, requests=requests, keys=keys, accounts=accounts)


ROUTES: Routes = (get(PAGE, search_page), form(PAGE, search, PAGE))
