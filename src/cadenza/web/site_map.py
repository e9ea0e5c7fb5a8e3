"""Everything that the site serves: its pages, and the endpoints of /platform/api."""

from cadenza.web import (
    chat,
    credit,
    docs,
    home,
    key_endpoints,
    keys,
    links,
    memory,
    passkeys,
    payments,
    preferences,
    proof,
    second_factor,
    security,
    sign_in,
    sign_up,
    statement,
    usage,
    webhooks,
)
from cadenza.web.operator import routes as operator
from cadenza.web.routes import Routes

MODULES = (
    home,
    sign_in,
    sign_up,
    links,
    passkeys,
    proof,
    chat,
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
    docs,
    operator,
)
ROUTES: Routes = tuple(one for module in MODULES for one in module.ROUTES)
