"""The entries and metering rows of requests, with everything that is needed to recompute a charge.

A correction is an entry of its own, and the metering row then shows what the request cost in the end.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, insert, update

from cadenza.core.records import Usage
from cadenza.ledger.batch_rows import ENTRY_COLUMNS
from cadenza.ledger.rules import Charge, ChargeCorrection
from cadenza.store.schema import entries, usage
from cadenza.store.statements import Statement
from cadenza.store.store import Transaction

NOTHING = Usage(0, 0)
CORRECTED = "This reply was charged while it still ran, and cost less in the end."
CORRECTED_COLUMNS = (
    "provider",
    "model",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "cost_nano",
    "estimated",
    "status",
    "first_byte_ms",
    "duration_ms",
    "input_nano",
    "output_nano",
    "cached_input_nano",
    "held_nano",
    "short_nano",
    "source",
)
ADD_SOURCED_ENTRY = Statement(insert(entries), *ENTRY_COLUMNS, "source")
CORRECT = Statement(
    update(usage)
    .where(usage.c.completion_id == bindparam("completion"))
    .values({name: bindparam(f"new_{name}") for name in CORRECTED_COLUMNS})
)


def write_corrections(tx: Transaction, corrections: Sequence[ChargeCorrection]) -> None:
    """Write what sweeps charged too much. The database accepts one correction of a request by its late end."""
    for one in corrections:
        charge, row = one.charge, usage_row(one.charge)
        completion_id = charge.hold.completion_id
        if one.amount_nano:
            entry = entry_row(
                charge.hold.account_id,
                "correction",
                one.amount_nano,
                charge.outcome.ended_at,
                completion_id=completion_id,
                note=CORRECTED,
            )
            tx.change(ADD_SOURCED_ENTRY, {**entry, "source": f"late-end:{completion_id}"})
        new = {f"new_{name}": row[name] for name in CORRECTED_COLUMNS}
        tx.change(CORRECT, {"completion": completion_id, **new})


def entry_row(
    account_id: str, kind: str, amount_nano: int, now_ms: int, *, completion_id: str | None = None, note: str = ""
) -> dict[str, Any]:
    return {
        "account_id": account_id,
        "kind": kind,
        "amount_nano": amount_nano,
        "completion_id": completion_id,
        "note": note,
        "created_at": now_ms,
    }


def charge_row(charge: Charge) -> dict[str, Any]:
    hold = charge.hold
    return entry_row(
        hold.account_id, "charge", -charge.charged_nano, charge.outcome.ended_at, completion_id=hold.completion_id
    )


def usage_row(charge: Charge) -> dict[str, Any]:
    hold, outcome = charge.hold, charge.outcome
    counted = outcome.usage or NOTHING
    return {
        "completion_id": hold.completion_id,
        "request_id": hold.request_id,
        "account_id": hold.account_id,
        "key_id": hold.key_id,
        "class_id": hold.class_id,
        "provider": outcome.provider,
        "model": outcome.model,
        "prompt_tokens": counted.prompt_tokens,
        "cached_tokens": counted.cached_tokens,
        "completion_tokens": counted.completion_tokens,
        "cost_nano": charge.charged_nano,
        "estimated": counted.estimated,
        "status": outcome.status,
        "stream": hold.stream,
        "started_at": hold.started_at,
        "first_byte_ms": outcome.first_byte_ms,
        "duration_ms": outcome.duration_ms,
        "input_nano": hold.input_nano,
        "output_nano": hold.output_nano,
        "cached_input_nano": hold.cached_input_nano,
        "held_nano": None if charge.source == "sweep" else hold.amount_nano,
        "short_nano": charge.short_nano,
        "source": charge.source,
        "idempotency_digest": hold.idempotency_digest,
    }
