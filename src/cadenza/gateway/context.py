"""What serving a request needs, built once at the start, and the notes that are taken of it."""

import time

from cadenza.core.records import Outcome, Plan, Principal, Route
from cadenza.gateway.call import Call
from cadenza.gateway.classes import Catalogue
from cadenza.gateway.dispatch import Dispatcher
from cadenza.observe import Observer
from cadenza.store.database import Database
from cadenza.store.writer import LedgerWriter


class Gateway:
    """The resources of the data plane. Handed to every endpoint; owns none of the request's state."""

    def __init__(
        self,
        db: Database,
        catalogue: Catalogue,
        dispatcher: Dispatcher,
        writer: LedgerWriter,
        observer: Observer,
    ) -> None:
        self.db = db
        self.catalogue = catalogue
        self.dispatcher = dispatcher
        self.writer = writer
        self.log = observer.log
        self.metrics = observer.metrics
        self.at = observer.at
        self.keys_used: dict[str, int] = {}  # when each key was last used (ms), until it is written to the store

    def note_use(self, call: Call, principal: Principal) -> None:
        self.keys_used[principal.key_id] = time.time_ns() // 1_000_000
        call.facts["key_id"] = principal.key_id

    def note_outcome(self, call: Call, plan: Plan, route: Route, outcome: Outcome) -> None:
        usage = outcome.usage
        self.metrics.first_byte.labels(plan.class_id).observe((call.first_byte_ms or 0) / 1000)
        self.metrics.tokens.labels(plan.class_id, "prompt").inc(usage.prompt_tokens)
        self.metrics.tokens.labels(plan.class_id, "cached").inc(usage.cached_tokens)
        self.metrics.tokens.labels(plan.class_id, "completion").inc(usage.completion_tokens)
        call.facts |= {"class_id": plan.class_id, "provider": route.provider}
        call.facts |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        if outcome.is_doubtful:
            self.metrics.doubtful_usage.labels(route.provider).inc()
            self.log.warning("an upstream's counts cannot be true", provider=route.provider, request_id=call.request_id)
        if outcome.fault:
            self.dispatcher.note(route, outcome.fault)
            call.facts["fault"] = outcome.fault

    def note_end(self, call: Call, endpoint: str) -> None:
        seconds = time.perf_counter() - call.started_s
        self.metrics.requests.labels(endpoint, str(call.status)).inc()
        self.metrics.duration.labels(endpoint).observe(seconds)
        facts = {"endpoint": endpoint, "status": call.status, "ms": round(seconds * 1000, 1), **call.facts}
        self.log.info("request", request_id=call.request_id, **facts)
