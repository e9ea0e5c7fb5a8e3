"""How one request is printed: cadenza explain."""

import click

from cadenza.control.requests import OperatorRequest

LABEL_CHARS = 10


def print_request(one: OperatorRequest) -> None:
    """Facts, steps and money, for a terminal."""
    for label, value in _facts(one):
        click.echo(f"{label:<{LABEL_CHARS}} {value}".rstrip())
    if one.steps:
        click.echo()
        width = max(len(f"{step.at_ms:,}") for step in one.steps)
        for step in one.steps:
            click.echo(f"{step.at_ms:>{width},} ms  {step.text}")
    click.echo()
    for line in _money(one):
        click.echo(line)


def _facts(one: OperatorRequest) -> list[tuple[str, str]]:
    kind = {True: ", streamed", False: ", not streamed", None: ""}[one.is_stream]
    key = f"{one.key_name or 'without a name'}, {one.key_prefix}… ({one.key_id})" if one.key_prefix else one.key_id
    version = f", version {one.version}" if one.version is not None else ""
    facts = [
        ("request", one.request_id or ""),
        ("completion", one.completion_id or "none: no credit was held"),
        ("began", f"{one.started_at or '?'}, {one.endpoint}{kind}"),
        ("account", f"{one.email} ({one.account_id})"),
        ("key", key or ""),
        ("class", f"{one.class_id}{version}" if one.class_id else ""),
        ("route", f"{one.provider}/{one.model}" if one.provider else ""),
        ("end", f"{one.status}: {one.end}" if one.status else ""),
        ("", one.advice),
    ]
    return [(label, value) for label, value in facts if value]


def _money(one: OperatorRequest) -> list[str]:
    lines = [f"held       ${one.held}"] if one.held else []
    width = max((len(f"{part.tokens:,}") for part in one.charge), default=0)
    for part in one.charge:
        amount = f"= {part.amount_nano:,} nano-dollars"
        lines.append(f"           {part.tokens:>{width},} tokens {part.kind} × {part.price_nano:,} {amount}")
    charged = one.charged.removeprefix("-")
    estimated = ", by our own count" if one.is_estimated else ""
    lines.append(f"charged    ${charged}{estimated}" if one.charge or charged.strip("0.") else "charged    nothing")
    if one.granted and one.granted.strip("-0."):
        lines.append(f"           ${one.granted.removeprefix('-')} of it from granted credit")
    for label, value, note in (
        ("searches", one.searches, "charged beside it"),
        ("short", one.short, "due, but the account could not pay it"),
        ("refunded", one.refunded, ""),
        ("cost", one.provider_cost, "what the provider charges"),
    ):
        if value:
            lines.append(f"{label:<{LABEL_CHARS}} ${value}" + (f" {note}" if note else ""))
    return lines
