"""Builds the site. Imported when the first visitor comes, and not before."""

from starlette.applications import Starlette

from cadenza.control.stripe import Stripe
from cadenza.gateway.gateway import Gateway
from cadenza.observe import Log
from cadenza.store.shared.state import Rates
from cadenza.web.application import ROUTES, build_application
from cadenza.web.assets import Assets
from cadenza.web.context import ReadMetrics, WebContext
from cadenza.web.ledger_check import LedgerCheck
from cadenza.web.openapi import build_document
from cadenza.web.reference import Reference
from cadenza.web.render import Renderer
from cadenza.web.settings import SiteSettings


def build_site(
    gateway: Gateway, rates: Rates, log: Log, settings: SiteSettings, read_metrics: ReadMetrics
) -> Starlette:
    assets = Assets()
    document = build_document(ROUTES)
    renderer = Renderer(assets)
    context = WebContext(
        store=gateway.store,
        gateway=gateway,
        rates=rates,
        log=log,
        settings=settings,
        assets=assets,
        renderer=renderer,
        read_metrics=read_metrics,
        ledger_check=LedgerCheck(gateway.store, log),
        document=document,
        reference=Reference(document, renderer),
        payments=Stripe(settings.stripe) if settings.stripe else None,
    )
    return build_application(context)
