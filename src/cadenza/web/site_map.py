"""Everything that the site serves: its pages, and the endpoints of /platform/api."""

from cadenza.web import home
from cadenza.web.account import (
    key_endpoints,
    keys,
    links,
    memory,
    passkeys,
    preferences,
    proof,
    second_factor,
    security,
    sign_in,
    sign_up,
)
from cadenza.web.chat import page
from cadenza.web.docs import pages
from cadenza.web.money import credit, payments, statement, usage, webhooks
from cadenza.web.operator import routes as operator
from cadenza.web.routes import Routes

MODULES = (
    home,
    sign_in,
    sign_up,
    links,
    passkeys,
    proof,
    page,
    keys,
    key_endpoints,
    usage,
    credit,
    payments,
    statement,
    webhooks,
    preferences,
    memory,
    security,
    second_factor,
    pages,
    operator,
)
ROUTES: Routes = tuple(one for module in MODULES for one in module.ROUTES)
