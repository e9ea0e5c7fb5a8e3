"""All pages and endpoints for operators."""

from cadenza.web.operator import accounts, audit_log, keys, ledger, overview
from cadenza.web.routes import Routes

ROUTES: Routes = (*overview.ROUTES, *accounts.ROUTES, *keys.ROUTES, *ledger.ROUTES, *audit_log.ROUTES)
