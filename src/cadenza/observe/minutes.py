"""What the last day counted, minute by minute: the metrics as a series, for the operator's overview.

A task reads the counters twice a minute, and the page when it is opened; no request pays for it. The ring is bounded,
and begins with the process that keeps it.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from cadenza.observe.worker_metrics import Family

MINUTE_S = 60
MINUTES_MAX = 24 * 60
EVERY_S = 30.0
COUNTERS = {  # those that are kept, and the label that tells their parts apart
    "cadenza_requests_total": "status",
    "cadenza_refused_total": "reason",
    "cadenza_doubtful_usage_total": "provider",
    "cadenza_ledger_lost_total": "",
    "cadenza_ledger_refused_total": "",
    "cadenza_ledger_short_nano_total": "",
    "cadenza_log_dropped_total": "",
}
LATE_S = {  # the histograms of which is kept how many values there were, and how many above this bound
    "cadenza_first_byte_seconds": 10.0,
    "cadenza_stream_gap_seconds": 10.0,
    "cadenza_ledger_commit_seconds": 1.0,
    "cadenza_loop_lag_seconds": 0.25,
}
ALL, LATE = "all", "late"

Counted = tuple[str, str]  # the name of a counter, and the value of its label; of a histogram, ALL or LATE


def read_totals(families: Iterable[Family], counters: Mapping[str, str] = COUNTERS) -> Counter[Counted]:
    """What these counters and the histograms of LATE_S have counted since the start of their processes."""
    totals = Counter[Counted]()
    for family in families:
        bound_s = LATE_S.get(family.name)
        for name, labels, value in family.samples:
            if (label := counters.get(name)) is not None:
                totals[name, dict(labels).get(label, "")] += int(value)
            elif bound_s and name == f"{family.name}_count":
                totals[family.name, ALL] += int(value)
                totals[family.name, LATE] += int(value)
            elif bound_s and dict(labels).get("le") == str(bound_s):
                totals[family.name, LATE] -= int(value)
    return totals


class MinuteRing:
    """The counts of each of the last minutes. What was counted before its first reading is left out."""

    def __init__(self, now_s: float | None = None) -> None:
        self.started_s = int(time.time() if now_s is None else now_s)
        self._before: Mapping[Counted, int] | None = None
        self._minutes: dict[int, Counter[Counted]] = {}  # by the minute since the epoch, oldest first

    def note(self, totals: Mapping[Counted, int], now_s: float) -> None:
        """Add what was counted since the last reading to this minute. A total that has fallen counts from zero."""
        if self._before is not None:
            grown = {what: total - min(total, self._before.get(what, 0)) for what, total in totals.items()}
            minute = self._minutes.setdefault(int(now_s) // MINUTE_S, Counter())
            minute.update({what: count for what, count in grown.items() if count})
        self._before = totals
        for old in [one for one in self._minutes if one <= int(now_s) // MINUTE_S - MINUTES_MAX]:
            del self._minutes[old]

    def since(self, start_s: float) -> Mapping[str, Counter[str]]:
        """What each counter counted since a time, by its label."""
        found = defaultdict[str, Counter[str]](Counter)
        for minute, counts in self._minutes.items():
            if minute >= int(start_s) // MINUTE_S:
                for (name, label), number in counts.items():
                    found[name][label] += number
        return found

    def series(self, start_s: float, step_s: int, count: int, name: str) -> list[Counter[str]]:
        """What one counter counted in `count` steps of time, each of whole minutes."""
        steps = [Counter[str]() for _ in range(count)]
        for minute, counts in self._minutes.items():
            place = (minute * MINUTE_S - int(start_s) // MINUTE_S * MINUTE_S) // step_s
            if 0 <= place < count:
                for (found, label), number in counts.items():
                    if found == name:
                        steps[place][label] += number
        return steps
