"""How requests end, pure: what they are charged, and what happens if their process was swept meanwhile.

A request ends *late* if another process took its process for dead and swept it. No end is dropped silently:

| the sweep found         | and since                          | the late end                                        |
|-------------------------|------------------------------------|-----------------------------------------------------|
| no mark                 | it has no idempotency key          | is charged, from free credit; lost if that is short |
| no mark, so freed a key | the key is free, or used again     | is lost: nothing is charged                         |
| no mark                 | its API key was revoked            | is lost: nothing is charged                         |
| a mark, and charged it  | it cost as much, or less           | is whole; what was charged too much is corrected    |
| a mark, and charged it  | it was refunded more than it cost  | is whole; the mark stays charged                    |
| a mark, and charged it  | it cost more                       | is lost: the mark stays charged                     |

A lost reply ends with an error. So at most one of the requests with one idempotency key is charged and delivered whole.
"""

from collections.abc import Iterable

import msgspec

from cadenza.ledger.caps import CapState, CapUse
from cadenza.ledger.rules import (
    BatchFacts,
    Changes,
    Charge,
    Demand,
    End,
    Ended,
    LockedAccount,
    Recorded,
    granted_part,
    pay_debt,
    resize,
)

LOST_STATUS = 500  # of a request that must not seem complete


def begin_caps(caps: Iterable[CapState], use: CapUse, ends: list[End]) -> None:
    """Hold the part of each cap that the running requests of the process need, before any ends or is taken."""
    ending_nano: dict[str, dict[str, int]] = {}
    for end in ends:
        completion_id = end.hold.completion_id
        ending_nano.setdefault(end.hold.key_id, {})[completion_id] = use.ending_nano.get(completion_id, 0)
    for cap in caps:
        cap.begin(use.kept_nano.get(cap.key_id, 0), ending_nano.get(cap.key_id, {}))


def end_requests(
    account: LockedAccount, demand: Demand, ends: list[End], known: BatchFacts, changes: Changes
) -> list[Ended]:
    """Charge the requests that ended, then give back what the process does not keep of its reserve.

    `account`, `known` and `changes` are changed in place.
    """
    ended: list[Ended] = []
    following_nano = 0
    for end in ends:
        following_nano += end.covered_nano
    for end in ends:  # none may use what later ones hold
        following_nano -= end.covered_nano
        ended.append(_end(account, demand.kept_nano + following_nano, end, known, changes))
    resize(account, demand.kept_nano)
    if account.debt_nano:
        pay_debt(account)
    return ended


def _end(account: LockedAccount, kept_nano: int, end: End, known: BatchFacts, changes: Changes) -> Ended:
    """Charge what is due, from the part of the reserve that is not kept and from free credit, never more."""
    hold, outcome = end.hold, end.outcome
    if end.is_marked:
        changes.unmarked.append(hold.completion_id)
    cap = known.caps.get(hold.key_id)
    own_nano = cap.release(hold.completion_id) if cap else 0
    if end.is_uncertain and (recorded := known.ended.get(hold.completion_id)):
        return _end_again(account, end, recorded, known, changes)
    assert hold.completion_id not in known.ended, "a request ends once in a batch"
    if (hold.idempotency_digest or end.is_late) and outcome.usage and _has_lost_its_key(end, known):
        return _lose(end, known, changes)
    not_kept_nano = account.reserve_nano - kept_nano if account.reserve_nano > kept_nano else 0
    charged_nano = due_nano = end.due_nano if cap is None else _within_cap(cap, end, own_nano)
    if charged_nano > not_kept_nano and charged_nano > (payable_nano := not_kept_nano + account.free_nano):
        charged_nano = payable_nano
    assert 0 <= charged_nano <= due_nano <= end.due_nano
    if cap:
        cap.charge(charged_nano, hold.started_at, is_excused=_is_excused(end, own_nano))
    from_reserve_nano = charged_nano if charged_nano < not_kept_nano else not_kept_nano
    account.reserve_nano -= from_reserve_nano
    account.held_nano -= from_reserve_nano
    granted_nano = 0
    if charged_nano and account.granted_nano:
        granted_nano = granted_part(account.balance_nano, account.granted_nano, charged_nano)
    account.balance_nano -= charged_nano
    account.granted_nano -= granted_nano
    changes.charges.append(Charge(end, charged_nano, granted_nano=granted_nano))
    known.ended[hold.completion_id] = Recorded(charged_nano, end.source, granted_nano)
    if hold.idempotency_digest:
        (changes.kept_keys if outcome.usage else changes.freed_keys).append(hold)
    short_nano = end.due_nano - charged_nano
    return Ended(charged_nano, short_nano, is_lost=_is_short(end, charged_nano))


def _end_again(account: LockedAccount, end: End, recorded: Recorded, known: BatchFacts, changes: Changes) -> Ended:
    """The store has an end of this request. If a sweep wrote it and charged too much, correct it."""
    hold, due_nano, cost_nano = end.hold, end.due_nano, recorded.cost_nano
    if recorded.source == "lost":
        return Ended(is_lost=True)
    if recorded.source == "request" or end.source == "sweep":
        is_lost = end.source == "request" and _is_short(end, cost_nano)
        return Ended(cost_nano, max(0, due_nano - cost_nano), is_repeated=True, is_lost=is_lost)
    if cost_nano < due_nano:
        return Ended(cost_nano, is_lost=True)
    if recorded.refunded_nano > due_nano:  # a correction would give back more than was charged
        return Ended(cost_nano, is_repeated=True)
    corrected_nano = cost_nano - due_nano
    account.balance_nano += corrected_nano
    granted_nano = _granted_back(account, recorded, due_nano)
    account.granted_nano += granted_nano
    if cap := known.caps.get(hold.key_id):
        cap.charge(-corrected_nano, hold.started_at, is_excused=False)
    changes.corrections.append(Charge(end, due_nano, corrected_nano, granted_nano))
    known.ended[hold.completion_id] = Recorded(due_nano, "request", min(recorded.granted_nano, due_nano))
    return Ended(due_nano, is_repeated=not corrected_nano, corrected_nano=corrected_nano)


def _granted_back(account: LockedAccount, recorded: Recorded, due_nano: int) -> int:
    """What a correction gives back of granted credit: what the charge took of it beyond the final cost.

    A refund gave back paid credit first, and then a part of the granted credit.
    """
    granted_nano, refunded_nano = min(recorded.granted_nano, recorded.cost_nano), recorded.refunded_nano
    by_refund_nano = max(0, refunded_nano - (recorded.cost_nano - granted_nano))
    back_nano = max(0, granted_nano - by_refund_nano - (due_nano - refunded_nano))
    return max(0, min(back_nano, account.balance_nano - account.granted_nano))


def _lose(end: End, known: BatchFacts, changes: Changes) -> Ended:
    """Charge nothing: the reply must not seem complete. Its idempotency key is free, unless another request has it."""
    if end.hold.idempotency_digest:
        changes.freed_keys.append(end.hold)
    outcome = msgspec.structs.replace(end.outcome, status=LOST_STATUS)
    changes.charges.append(Charge(msgspec.structs.replace(end, outcome=outcome, source="lost"), 0))
    known.ended[end.hold.completion_id] = Recorded(0, "lost")
    return Ended(is_lost=True)


def _has_lost_its_key(end: End, known: BatchFacts) -> bool:
    """Whether the idempotency key of a request was freed, or its API key was revoked before it ended late.

    A paused process may have begun a request with a key that was revoked meanwhile: it is not known when it began.
    """
    hold = end.hold
    if digest := hold.idempotency_digest:
        used = known.keys.get((hold.account_id, digest))
        if used is None or used.completion_id != hold.completion_id:
            return True
    return end.is_late and hold.key_id in known.revoked_keys


def _is_short(end: End, charged_nano: int) -> bool:
    """Whether less is charged than was due and held: a sweep has taken back the reserve that covered it."""
    return charged_nano < end.due_nano and charged_nano < end.held_nano


def _is_excused(end: End, own_nano: int) -> bool:
    """Whether a request was already running when the cap of its key was set. A late one may have begun after that.

    It holds nothing of the cap then, or less than its credit, if it began under an earlier cap that was removed.
    """
    return not end.is_late and (not end.is_capped or own_nano < end.held_nano)


def _within_cap(cap: CapState, end: End, own_nano: int) -> int:
    """What is due for a request that held `own_nano` of its cap: at most that, or what the cap leaves if it is more."""
    cap.enter(end.hold.started_at)
    if _is_excused(end, own_nano):
        return end.due_nano
    return min(end.due_nano, max(own_nano, cap.left_nano(end.hold.started_at)))
