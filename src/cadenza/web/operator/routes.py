"""All pages and endpoints for operators."""

from cadenza.web.operator import accounts, acts, keys, ledger, overview
from cadenza.web.routes import Routes

ROUTES: Routes = (*overview.ROUTES, *accounts.ROUTES, *keys.ROUTES, *ledger.ROUTES, *acts.ROUTES)
