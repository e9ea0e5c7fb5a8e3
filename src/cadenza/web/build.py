"""Builds the site. Imported when the first visitor comes, and not before."""

from starlette.applications import Starlette

from cadenza.control.letters import Letters
from cadenza.control.passkeys import Passkeys
from cadenza.control.passwords import PasswordWork
from cadenza.control.sealing import Sealer
from cadenza.control.sign_in import SignIns
from cadenza.control.signing import Signer
from cadenza.control.stripe import Stripe
from cadenza.store.write_ahead_log import LogEraser
from cadenza.web.application import build_application
from cadenza.web.assets import Assets
from cadenza.web.context import WebContext
from cadenza.web.ledger_check import LedgerCheck
from cadenza.web.openapi import build_document
from cadenza.web.reference import Reference
from cadenza.web.render import Renderer
from cadenza.web.settings import SiteParts
from cadenza.web.site_map import ROUTES


def build_site(parts: SiteParts) -> Starlette:
    assets, store, stripe = Assets(), parts.gateway.store, parts.settings.stripe
    document, renderer, signer = build_document(ROUTES), Renderer(assets), Signer(store)
    sealer = Sealer(store, parts.settings.secret_key)
    if not sealer.has_key:
        parts.log.warning(
            "the secrets of authenticator apps are stored unencrypted: name a key with secret_key_env in [platform]"
        )
    context = WebContext(
        store=store,
        gateway=parts.gateway,
        rates=parts.rates,
        log=parts.log,
        settings=parts.settings,
        assets=assets,
        renderer=renderer,
        markdown=parts.markdown,
        read_metrics=parts.read_metrics,
        ledger_check=LedgerCheck(store, parts.log),
        document=document,
        reference=Reference(document, renderer),
        sign_ins=SignIns(store, parts.rates, PasswordWork(), signer, sealer),
        passkeys=Passkeys(store, signer),
        letters=Letters(store, parts.rates, parts.outbox) if parts.outbox else None,
        payments=Stripe(stripe) if stripe else None,
        log_eraser=LogEraser(store),
    )
    return build_application(context, ROUTES)
