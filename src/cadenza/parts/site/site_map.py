"""Everything that the site serves: its pages, and the endpoints of /platform/api. A new module is added here."""

from cadenza.parts.site import home
from cadenza.parts.site.account import (
    archive,
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
    tokens,
)
from cadenza.parts.site.chat import page as chat
from cadenza.parts.site.docs import pages as docs
from cadenza.parts.site.money import activity, credit, payments, statement, usage
from cadenza.parts.site.operator import (
    accounts,
    audit_log,
    classes,
    ledger,
    load,
    margins,
    months,
    overview,
    requests,
    search,
    vouchers,
)
from cadenza.parts.site.operator import keys as operator_keys
from cadenza.parts.site.routes import Routes

SIGN_IN = (sign_in, proof, sign_up, links, passkeys, second_factor)
ACCOUNT = (*SIGN_IN, keys, preferences, memory, security, archive, tokens)
MONEY = (usage, activity, credit, payments, statement)
OPERATOR_MONEY = (vouchers, margins, ledger, months)
OPERATOR = (overview, load, search, accounts, requests, operator_keys, classes, *OPERATOR_MONEY, audit_log)
MODULES = (home, *ACCOUNT, chat, *MONEY, docs, *OPERATOR)
ROUTES: Routes = tuple(one for module in MODULES for one in module.ROUTES)
