"""`[observe]` in the config."""

from collections.abc import Iterable
from typing import Annotated, Self

from msgspec.structs import replace

from cadenza.config.checks import ADDRESS, Secret
from cadenza.config.reader import ConfigReader, PartTable
from cadenza.config.settings import NO_PLAIN_HTTP, is_public_http
from cadenza.core.config_keys import FRACTION, Like, Variable

HEADER = r" *[A-Za-z0-9-]+=(?! )[ -+\--~]+"  # without a comma
HEADERS = (f"{HEADER}(,{HEADER})*", "the value must be headers like: authorization=Bearer TOKEN,x-tenant=1")


# A key is one line, or two with its sentence.
# fmt: off
class ObserveSettings(PartTable, frozen=True):
    otlp_url: Annotated[str, ADDRESS, Like("http://127.0.0.1:4318"),
        "an OpenTelemetry collector; /v1/traces and /v1/metrics are added"]
    sample: Annotated[float, FRACTION, "the share of requests that is traced"] = 0.01
    headers_env: Annotated[str | None, Variable("the headers for the collector", "OTLP_HEADERS", *HEADERS)] = None
    headers: Secret | None = None
    proxy: str | None = None
    # fmt: on

    def mistakes(self) -> Iterable[tuple[str, str]]:
        if self.otlp_url.endswith(("/v1/traces", "/v1/metrics")):
            yield "otlp_url", "must be the address before /v1/traces and /v1/metrics, which are added"
        elif is_public_http(self.otlp_url):
            words = NO_PLAIN_HTTP.format("headers and traces")
            yield "otlp_url", f"{words}, or a collector on a private network"

    def completed(self, reader: ConfigReader) -> Self:
        return replace(self, proxy=reader.proxy(self.otlp_url, ("observe", "otlp_url")))


TABLES = {"observe": Annotated[ObserveSettings | None, "without it, no traces are sent"]}
