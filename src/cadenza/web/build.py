"""Builds the site. Imported when the first visitor comes, and not before."""

from starlette.applications import Starlette

from cadenza.control.letters import Letters
from cadenza.control.outbox import Outbox
from cadenza.control.passkeys import Passkeys
from cadenza.control.passwords import PasswordWork
from cadenza.control.sign_in import SignIns
from cadenza.control.signing import Signer
from cadenza.gateway.gateway import Gateway
from cadenza.observe import Log
from cadenza.store.shared.state import Rates
from cadenza.web.application import build_application
from cadenza.web.assets import Assets
from cadenza.web.context import WebContext
from cadenza.web.render import Renderer
from cadenza.web.settings import SiteSettings


def build_site(
    gateway: Gateway, rates: Rates, log: Log, settings: SiteSettings, outbox: Outbox | None = None
) -> Starlette:
    store, assets = gateway.store, Assets()
    signer = Signer(store)
    context = WebContext(
        store=store,
        gateway=gateway,
        rates=rates,
        log=log,
        settings=settings,
        assets=assets,
        renderer=Renderer(assets),
        sign_ins=SignIns(store, rates, PasswordWork(), signer),
        passkeys=Passkeys(store, signer),
        letters=Letters(store, rates, outbox) if outbox else None,
    )
    return build_application(context)
