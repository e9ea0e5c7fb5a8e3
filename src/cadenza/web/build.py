"""Builds the site. Imported when the first visitor comes, and not before."""

from starlette.applications import Starlette

from cadenza.control.email.messages import Mailer
from cadenza.control.money.stripe import Stripe
from cadenza.control.sign_in.devices import Signer
from cadenza.control.sign_in.passkeys import Passkeys
from cadenza.control.sign_in.passwords import PasswordWork
from cadenza.control.sign_in.second_factor import Sealer
from cadenza.control.sign_in.sign_in import SignIns
from cadenza.store.sqlite.write_ahead_log import LogEraser
from cadenza.web.application import build_application
from cadenza.web.assets import Assets
from cadenza.web.context import WebContext
from cadenza.web.docs.openapi import build_document
from cadenza.web.docs.reference import Reference
from cadenza.web.operator.ledger_check import LedgerCheck
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
        mailer=Mailer(store, parts.rates, parts.outbox) if parts.outbox else None,
        payments=Stripe(stripe) if stripe else None,
        log_eraser=LogEraser(store),
    )
    return build_application(context, ROUTES)
