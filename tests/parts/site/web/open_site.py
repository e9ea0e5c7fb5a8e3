"""Services whose sign-up is open or by invitation, with and without e-mail."""

import msgspec

from tests.service_config import ServiceSpec, ordinary_spec

BASE_URL = "http://cadenza.example"
OPENING_NANO = 250_000_000


def site_spec(upstream_url: str, sign_up: str, mail_port: int | None = None) -> ServiceSpec:
    spec = ordinary_spec(upstream_url)
    address = f'base_url = "{BASE_URL}"\n' if mail_port else ""
    platform = f'[platform]\nsign_up = "{sign_up}"\nopening_credit = "0.25"\n{address}'
    mail = (
        f'[mail]\nhost = "127.0.0.1"\nport = {mail_port}\nsecurity = "none"\nsender = "Cadenza <cadenza@example.org>"\n'
        if mail_port
        else ""
    )
    return msgspec.structs.replace(spec, more_toml=spec.more_toml + platform + mail)
