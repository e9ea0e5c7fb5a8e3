"""How each route fares, and whether it may be asked: a circuit breaker, its own wish to rest, and an adaptive ceiling.

A route rests after several faults in a row, or when it asked for a rest (429 and its Retry-After). When the rest is
over, one request at a time tries it, until one succeeds. The ceiling follows what the upstream shows: it sinks with
each 429 or timeout, and while first tokens take far longer than usual, and rises with answers while it is in demand.
"""

import math
import time
from collections.abc import Callable

from cadenza.core.records import Route
from cadenza.core.shares import Shares
from cadenza.observe import Metrics
from cadenza.upstreams.base import Fault, FaultKind

FAULTS_TO_REST = 5
REST_S_MIN = 1.0
REST_S_MAX = 30.0
DOUBLINGS_MAX = 10
OVERLOADED = frozenset({503, 529})
FEW = 8  # a route that has so few at once and says no has another reason than their number
STEP_DOWN = 0.7
STEP_DOWN_SLOW = 0.9
STEP_DOWN_SLOWEST = 0.5
STEP_UP = 0.1  # for each answer while the ceiling is in demand
RECOVER_S = 60.0  # after so long without a sign of overload the ceiling is forgotten
SLOW_FACTOR = 3.0
SLOW_S_MIN = 0.1  # a delay of less is no sign of anything
RECENT_WEIGHT = 0.1
USUAL_WEIGHT = 0.002


class Pace:
    """How long answers take to begin: lately, and in the long run. Both modes have their own."""

    def __init__(self) -> None:
        self.recent_s = 0.0
        self._usual_s = 0.0

    def note(self, took_s: float, *, is_loaded: bool = False) -> None:
        """Under load slowness does not become usual; what is faster than usual always counts."""
        if not self._usual_s:
            self._usual_s = self.recent_s = took_s
        self.recent_s += (took_s - self.recent_s) * RECENT_WEIGHT
        if not is_loaded or took_s < self._usual_s:
            self._usual_s += (took_s - self._usual_s) * USUAL_WEIGHT

    @property
    def is_slow(self) -> bool:
        return self.recent_s > self._usual_s * SLOW_FACTOR and self.recent_s - self._usual_s > SLOW_S_MIN

    @property
    def step(self) -> float:
        """By how much a slow route is given less: the slower, the less, but at least half."""
        return min(STEP_DOWN_SLOW, max(STEP_DOWN_SLOWEST, self._usual_s * SLOW_FACTOR / self.recent_s))


class Ceiling:
    """How many requests a route is given at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._level = float(most)
        self._lowered_s = -math.inf

    def limit(self, now_s: float) -> int:
        if self._level < self._most and now_s - self._lowered_s > RECOVER_S:
            self.forget()
        return int(self._level)

    def forget(self) -> None:
        self._level = float(self._most)
        self._lowered_s = -math.inf

    def lower(self, in_flight: int, started_s: float, now_s: float) -> None:
        """The route had too much. Few at once are not; and what was asked before the last step down is no news."""
        if in_flight >= FEW and started_s > self._lowered_s:
            self._level = min(self._level, in_flight) * STEP_DOWN
            self._lowered_s = now_s

    def lower_to_pace(self, pace: Pace, now_s: float) -> None:
        """The route is slow: a step, and then time for it to show."""
        if now_s - self._lowered_s > pace.recent_s:
            self._level = max(min(self._level, FEW), self._level * pace.step)
            self._lowered_s = now_s

    def answered(self, in_flight: int) -> None:
        if self._level < self._most and in_flight * 2 >= self._level:
            self._level = min(self._most, self._level + STEP_UP)


class RouteHealth:
    """One model of one provider, over all the classes that use it."""

    def __init__(self, ceiling: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.is_busy = False  # it rests because it asked for it, not because it failed
        self._ceiling = Ceiling(ceiling)
        self._shares = Shares(ceiling)
        self._paces = {False: Pace(), True: Pace()}
        self._is_tried = False  # one request asks whether it is well again
        self.forget()

    def forget(self) -> None:
        """Begin anew, as if nothing had ever gone wrong; what is in flight stays counted."""
        self._faults = 0  # in a row, before the first token
        self._cuts = 0  # in a row, after it
        self._rests = 0  # in a row
        self._rested_s, self._rests_until_s = self.clock(), -math.inf
        self._ceiling.forget()

    def change_ceiling(self, most: int) -> None:
        self._ceiling = Ceiling(most)

    @property
    def rest_s(self) -> float:
        """How long it still rests."""
        return max(0.0, self._rests_until_s - self.clock())

    @property
    def is_resting(self) -> bool:
        return self._rests_until_s > self.clock()

    @property
    def is_down(self) -> bool:
        """It rests because it failed."""
        return self.is_resting and not self.is_busy

    @property
    def limit(self) -> int:
        return self._ceiling.limit(self.clock())

    @property
    def in_flight(self) -> int:
        return self._shares.taken

    def begin(self, key_id: str, *, is_last_resort: bool = False) -> "Attempt | None":
        """A place for one request, if the route may be asked. One that rests is asked only where no other is left."""
        if self.is_resting and not is_last_resort:
            return None
        is_trial = self._rests_until_s > -math.inf
        if is_trial and self._is_tried:
            return None
        now_s = self.clock()
        self._shares.limit = self._ceiling.limit(now_s)
        if not self._shares.take(key_id, now_s):
            self._shares.want(key_id, now_s)
            return None
        self._is_tried = self._is_tried or is_trial
        return Attempt(self, key_id, now_s, is_trial=is_trial)

    def end(self, attempt: "Attempt") -> None:
        self._shares.give_back(attempt.key_id)
        self.end_trial(attempt)

    def end_trial(self, attempt: "Attempt") -> None:
        """It was found out how the route is; the next one may try it while this one goes on."""
        if attempt.is_trial:
            self._is_tried = attempt.is_trial = False

    def note_answer(self, started_s: float, *, is_stream: bool) -> None:
        """It began to answer. Who was asked before a rest began cannot end it."""
        now_s = self.clock()
        if started_s >= self._rested_s:
            self._faults = self._rests = 0
            self._rests_until_s = -math.inf
        pace = self._paces[is_stream]
        is_loaded = self.in_flight * 2 >= self.limit
        pace.note(now_s - started_s, is_loaded=is_loaded)
        if pace.is_slow and is_loaded:
            self._ceiling.lower_to_pace(pace, now_s)
        else:
            self._ceiling.answered(self.in_flight)

    def note_finish(self) -> None:
        self._cuts = 0

    def note_fault(self, fault: Fault, started_s: float, *, has_answered: bool) -> None:
        if fault.kind is FaultKind.REFUSED:  # the request's own
            return
        now_s = self.clock()
        if fault.kind in {FaultKind.BUSY, FaultKind.TIMED_OUT} or fault.status in OVERLOADED:
            self._ceiling.lower(self.in_flight, started_s, now_s)
        if fault.retry_after_s:
            self._rest(now_s, fault.retry_after_s, is_busy=fault.kind is FaultKind.BUSY)
        elif fault.kind is not FaultKind.BUSY and started_s >= self._rested_s:
            self._note_failure(now_s, has_answered=has_answered)

    def _note_failure(self, now_s: float, *, has_answered: bool) -> None:
        """What failed together with what began a rest does not make it longer."""
        if has_answered:
            self._cuts += 1
        else:
            self._faults += 1
        if max(self._faults, self._cuts) >= FAULTS_TO_REST:
            self._rest(now_s, min(REST_S_MAX, REST_S_MIN * 2 ** min(self._rests, DOUBLINGS_MAX)), is_busy=False)
            self._rests += 1

    def _rest(self, now_s: float, rest_s: float, *, is_busy: bool) -> None:
        self._rested_s = now_s
        self.is_busy = is_busy and not self.is_down
        self._rests_until_s = max(self._rests_until_s, now_s + rest_s)


class Attempt:
    """One request on one route: its place, given back at its end, and what is learnt meanwhile."""

    def __init__(self, health: RouteHealth, key_id: str, started_s: float, *, is_trial: bool) -> None:
        self.key_id = key_id
        self.is_trial = is_trial
        self._health = health
        self._started_s = started_s
        self._has_answered = False

    def end(self) -> None:
        self._health.end(self)

    def note_answer(self, *, is_stream: bool) -> None:
        self._has_answered = True
        self._health.end_trial(self)
        self._health.note_answer(self._started_s, is_stream=is_stream)

    def note_finish(self) -> None:
        self._health.note_finish()

    def note_fault(self, fault: Fault) -> None:
        self._health.note_fault(fault, self._started_s, has_answered=self._has_answered)


class Healths:
    """Every route's health, by provider and model."""

    def __init__(self, ceiling: int, metrics: Metrics) -> None:
        self._ceiling = ceiling
        self._metrics = metrics
        self._routes: dict[tuple[str, str], RouteHealth] = {}

    def forget(self) -> None:
        for health in self._routes.values():
            health.forget()

    def change_ceiling(self, ceiling: int) -> None:
        self._ceiling = ceiling
        for health in self._routes.values():
            health.change_ceiling(ceiling)

    def of(self, route: Route) -> RouteHealth:
        place = (route.provider, route.model)
        if place not in self._routes:
            health = self._routes[place] = RouteHealth(self._ceiling)
            self._metrics.route_limit.labels(*place).set_function(lambda: health.limit)
            self._metrics.route_in_flight.labels(*place).set_function(lambda: health.in_flight)
            self._metrics.route_resting.labels(*place).set_function(lambda: health.is_resting)
        return self._routes[place]
