"""The retention audit reads what a collector would get."""

from cadenza.parts.retention.case import PartAudit
from cadenza.parts.retention.config import PrivateConfig, Table


def private(given: Table, config: PrivateConfig, upstream_url: str) -> Table:
    """The collector is the built-in one, and every request is traced."""
    if observe := given.get("observe"):
        config.secret(observe.get("headers_env"), "the header for the trace collector", "authorization=")
        return {"observe": {**observe, "otlp_url": upstream_url, "sample": 1.0}}
    return given


AUDIT = PartAudit(private=private)
