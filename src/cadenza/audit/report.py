"""What an audit says: on the terminal, as JSON, and as a page that an auditor can file. None of it has content."""

import hashlib
import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import msgspec

from cadenza.audit.findings import ANSWERED, AuditVerdict, Findings
from cadenza.config import Settings

VERDICTS = {
    AuditVerdict.CLEAN: "Nothing that was sent was found where it must not be.",
    AuditVerdict.FOUND: "Content was found where it must not be.",
    AuditVerdict.INCONCLUSIVE: "The search did not find what is stored by design, so it shows nothing.",
}
FORMS = (
    "Every needle was looked for as it is, in upper case, escaped as in JSON and in addresses, in hexadecimal, in "
    "base64, in UTF-16, and in compressed data."
)
LIMITS = (
    "The audit shows what this program, with this config, left on this machine. It cannot show what a provider keeps.",
    "The memory of processes is not searched: a request that is served is in it.",
    "What could not be searched is listed with the reason.",
)


def program_facts() -> dict[str, str]:
    """The program and the machine. The digest of the installed files tells one build from another."""
    facts = {"program": "cadenza"}
    try:
        installed = distribution("cadenza")
        record = installed.read_text("RECORD") or ""
        facts = {
            "program": f"cadenza {installed.version}",
            "installed files": "sha256 " + hashlib.sha256(record.encode()).hexdigest()[:16] + "…",
        }
    except PackageNotFoundError:
        pass
    machine = f"{platform.system()} {platform.release()} {platform.machine()}"
    user = "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
    return {**facts, "python": platform.python_version(), "machine": f"{platform.node()}, {machine}", "run by": user}


def config_facts(settings: Settings) -> dict[str, str]:
    """The config in words, without addresses that may have a password."""
    source = settings.source
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16] if source else ""
    kinds = [f"{name} ({one.kind}, dialect {one.dialect})" for name, one in settings.providers.items()]
    grounding = settings.grounding
    parts = {"files": grounding.attachments, "memory": grounding.memory, grounding.search.engine + " search": True}
    return {
        "config": f"{source}, sha256 {digest}…" if source else "built-in",
        "store": settings.store.url.partition(":")[0],
        "shared state": settings.shared_state.url.partition(":")[0],
        "workers": str(settings.server.workers),
        "providers": ", ".join(kinds),
        "grounding": ", ".join(name for name, is_on in parts.items() if is_on),
    }


def to_json(findings: Findings) -> dict[str, Any]:
    return {
        "verdict": findings.verdict.value,
        "facts": findings.facts,
        "notes": findings.notes,
        "reached": findings.reached,
        "sent": msgspec.to_builtins(findings.sent),
        "searched": msgspec.to_builtins(findings.searched),
        "hits": msgspec.to_builtins(findings.hits),
        "kept": {name: sorted(places) for name, places in findings.kept.items()},
        "remains": {name: sorted(places) for name, places in findings.remains.items()},
        "missing": findings.blind,
    }


def summary(findings: Findings) -> Iterator[str]:
    """For the terminal."""
    yield f"Sent       {describe_sent(findings)}"
    size_bytes = sum(one.size_bytes for one in findings.searched)
    yield f"Searched   {len(findings.searched)} places, {_in_units(size_bytes)}:"
    yield from (f"           {_in_units(one.size_bytes):>9}  {one.place}" for one in findings.searched)
    if skipped := list(_skipped(findings)):
        yield "Not searched"
        yield from (f"           {line}" for line in skipped)
    if findings.notes:
        yield "Not covered"
        yield from (f"           {note}" for note in findings.notes)
    yield f"By design  These are stored, and were found only where they belong: {_names(findings.kept)}."
    if findings.remains:
        yield f"Remains    These were deleted, and stay in files of Postgres for a while: {_names(findings.remains)}."
    if findings.hits:
        yield "FOUND"
        yield from (f"           {line}" for line in _hits(findings))
    yield from (f"MISSING    {name}: it is stored by design, and the search did not find it" for name in findings.blind)
    yield ""
    yield VERDICTS[findings.verdict]


def describe_sent(findings: Findings) -> str:
    answered = sum(one.status in ANSWERED for one in findings.sent if one.status is not None)
    without = sum(not one.status for one in findings.sent)
    refused = len(findings.sent) - answered - without
    reached = ", ".join(f"the {name} {count}" for name, count in findings.reached.items() if count)
    tail = f" Requests that the built-in servers got: {reached}." if reached else ""
    return (
        f"{len(findings.sent)} needles: {answered} in requests that were answered, {refused} refused or failed, "
        f"{without} without a reply.{tail}"
    )


def page(findings: Findings) -> str:
    """The report as Markdown."""
    statuses = Counter(_status(one.status) for one in findings.sent)
    lines = [
        "# Retention audit",
        "",
        f"**{VERDICTS[findings.verdict]}**",
        "",
        *_table(("", ""), findings.facts.items()),
        "## What was sent",
        "",
        f"{describe_sent(findings)} Replies: {', '.join(f'{count} × {name}' for name, count in statuses.items())}.",
        "",
        *_table(("needle", "reply"), ((one.name, _status(one.status)) for one in findings.sent)),
        "## What was searched",
        "",
        FORMS,
        "",
        *_table(("place", "bytes"), ((one.place, f"{one.size_bytes:,}") for one in findings.searched)),
        "## What was not searched or not covered",
        "",
        *(f"- {line}" for line in (*_skipped(findings), *findings.notes, *LIMITS)),
        "",
        "## Stored by design",
        "",
        *_places(findings.kept),
        *(f"- Not found, although it is stored: {name}" for name in findings.blind),
        *(["## Deleted, and in files of Postgres until it reuses them", ""] if findings.remains else []),
        *(_places(findings.remains) if findings.remains else []),
        "## Found where it must not be",
        "",
        *([f"- {line}" for line in _hits(findings)] or ["Nothing."]),
        "",
    ]
    return "\n".join(lines)


def moment(began_s: float) -> str:
    return datetime.fromtimestamp(began_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _status(status: int | None) -> str:
    return "not a request" if status is None else str(status or "no reply")


def _skipped(findings: Findings) -> Iterator[str]:
    return (f"{one.place}: {reason}" for one in findings.searched for reason in one.skipped)


def _hits(findings: Findings) -> Iterator[str]:
    """One line for each needle, form and place, however often it is there."""
    counts = Counter((hit.needle, hit.form, hit.place, hit.where) for hit in findings.hits)
    for (needle, form, place, where), count in counts.items():
        times = f", {count} times" if count > 1 else ""
        yield f"{needle} ({form}): {place}{f', {where}' if where else ''}{times}"


def _places(found: Mapping[str, set[str]]) -> list[str]:
    return _table(("needle", "found in"), ((name, "; ".join(sorted(places))) for name, places in sorted(found.items())))


def _names(found: Mapping[str, set[str]]) -> str:
    return ", ".join(sorted(found))


def _table(columns: tuple[str, str], rows: Iterable[tuple[str, str]]) -> list[str]:
    cells = [f"| {name.replace('|', chr(92) + '|')} | {value.replace('|', chr(92) + '|')} |" for name, value in rows]
    return [f"| {columns[0]} | {columns[1]} |", "|---|---|", *cells, ""]


def _in_units(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 100_000 else f"{size_bytes:,} B"
