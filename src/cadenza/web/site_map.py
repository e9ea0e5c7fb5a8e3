"""Everything that the site serves: its pages, and the endpoints of /platform/api. A new module is added here."""

from cadenza.web import home
from cadenza.web.account import (
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
from cadenza.web.chat import page as chat
from cadenza.web.docs import pages as docs
from cadenza.web.money import activity, credit, payments, statement, usage
from cadenza.web.operator import (
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
from cadenza.web.operator import keys as operator_keys
from cadenza.web.routes import Routes

SIGN_IN = (sign_in, proof, sign_up, links, passkeys, second_factor)
ACCOUNT = (*SIGN_IN, keys, preferences, memory, security, archive, tokens)
MONEY = (usage, activity, credit, payments, statement)
OPERATOR_MONEY = (vouchers, margins, ledger, months)
OPERATOR = (overview, load, search, accounts, requests, operator_keys, classes, *OPERATOR_MONEY, audit_log)
MODULES = (home, *ACCOUNT, chat, *MONEY, docs, *OPERATOR)
ROUTES: Routes = tuple(one for module in MODULES for one in module.ROUTES)
