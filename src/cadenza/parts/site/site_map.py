"""Everything that the site serves: its pages, the endpoints of /platform/api, and what parts add to both.

A new module of the site is added here; a part has its own module `pages`.
"""

from cadenza import parts
from cadenza.parts.site import home
from cadenza.parts.site.account import (
    archive,
    keys,
    links,
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
from cadenza.parts.site.joining import Pages, join
from cadenza.parts.site.money import activity, credit, statement, usage
from cadenza.parts.site.operator import (
    accounts,
    audit_log,
    classes,
    ledger,
    load,
    overview,
    requests,
    search,
)
from cadenza.parts.site.operator import keys as operator_keys
from cadenza.parts.site.render import NOTES, Tab

SIGN_IN = (sign_in, proof, sign_up, links, passkeys, second_factor)
ACCOUNT = (*SIGN_IN, keys, preferences, security, archive, tokens)
MONEY = (usage, activity, credit, statement)
OPERATOR = (overview, load, search, accounts, requests, operator_keys, classes, ledger, audit_log)
MODULES = (home, *ACCOUNT, chat, *MONEY, docs, *OPERATOR)
OWN = Pages(
    routes=tuple(one for module in MODULES for one in module.ROUTES),
    tabs=(
        Tab("/settings", "Preferences"),
        Tab("/settings/security", "Sign-in and security"),
        Tab("/settings/tokens", "Access tokens"),
        Tab("/usage", "Overview"),
        Tab("/usage/activity", "Activity"),
        Tab("/operator", "Overview"),
        Tab("/operator/requests", "Requests"),
        Tab("/operator/search", "Search"),
        Tab("/operator/accounts", "Accounts"),
        Tab("/operator/keys", "Keys"),
        Tab("/operator/classes", "Classes"),
        Tab("/operator/ledger", "Ledger"),
        Tab("/operator/audit-log", "Audit log"),
    ),
    notes=NOTES,
)
SITE = join(OWN, (part.load("pages").PAGES for part in parts.having("pages")))
