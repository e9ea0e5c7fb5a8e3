"""The lines of the site on the start screen: its address, how to sign in, and how to get an operator."""

import secrets
from functools import partial

from cadenza.core.records import COMMAND_LINE
from cadenza.parts.site.accounts import set_password
from cadenza.parts.site.sign_in.links import make_operator_link
from cadenza.terminal.checks import Lines, Screen, StartFacts
from cadenza.terminal.configured import command_to_paste
from cadenza.terminal.console import now_ms


async def describe(start: StartFacts) -> Lines:
    pages = start.settings.site_url or start.base_url.removesuffix("/v1")
    lines = [("Pages", f"{pages}/" + (f"   (sign in as {start.demo})" if start.demo else ""))]
    command = partial(command_to_paste, start.settings.source)
    if start.demo and start.at_terminal:
        password = secrets.token_urlsafe(12)
        await set_password(start.store, start.demo, password, COMMAND_LINE, now_ms())
        lines.append(("Password", f"{password}   (shown only this once)"))
    elif start.demo:
        lines.append(("Password", f"none yet; to set it: {command(f'account password {start.demo}')}"))
    if start.at_terminal and not start.accounts.has_others:
        if path := await make_operator_link(start.store, now_ms()):
            lines.append(("Operator", f"{pages}{path}   (makes the operator's account, once, for 24 hours)"))
    elif not start.accounts.has_operator:
        how = ("make an account one", "account operator EMAIL")
        if not start.accounts.has_others:
            how = ("print a link that makes one, once", "account link operator")
        lines.append(("Operator", f"none yet; to {how[0]}: {command(how[1])}"))
    return lines


screen: Screen = describe
