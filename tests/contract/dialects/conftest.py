"""One service with a provider for each twin, all on one loopback port. The class forte is switched to a twin."""

import contextlib
from collections.abc import Iterator

import msgspec
import openai
import pytest

from tests.contract.dialects.hosts import HOSTS
from tests.contract.dialects.self_hosted import SELF_HOSTED
from tests.contract.dialects.twin import KEY, MODEL, Conversation, Twin
from tests.contract.dialects.vendors import VENDORS
from tests.loopback import LoopbackUpstream
from tests.raw_client import RawClient
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec

TWINS: dict[str, Twin] = {**SELF_HOSTED, **HOSTS, **VENDORS}


class Stage:
    """A running service whose class forte is served by one twin."""

    def __init__(self, service: Service, upstream: LoopbackUpstream, spec: ServiceSpec) -> None:
        self.service = service
        self.upstream = upstream
        self.api = RawClient(service.port, service.key)
        self.name = ""
        self._spec = spec

    @property
    def twin(self) -> Twin:
        return TWINS[self.name]

    def switch(self, name: str, route_toml: str = "") -> None:
        """Serve forte with this twin."""
        routes = {"forte": [RouteSpec(name, MODEL, more_toml=route_toml)]}
        self.service.config.write_text(msgspec.structs.replace(self._spec, routes=routes).toml())
        self.service.reload()
        self.name = name

    @contextlib.contextmanager
    def conversation(self) -> Iterator[Conversation]:
        """The twin answers, and at the end it has found nothing wrong."""
        self.upstream.reset()
        conversation = Conversation(self.twin)
        self.upstream.always(conversation)
        try:
            yield conversation
        finally:
            assert conversation.problems == []

    @contextlib.contextmanager
    def client(self) -> Iterator[openai.OpenAI]:
        http_client = openai.DefaultHttpxClient(trust_env=False)
        with openai.OpenAI(
            base_url=self.service.base_url, api_key=self.service.key, http_client=http_client, max_retries=0
        ) as made:
            yield made


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    key_file = tmp_path_factory.mktemp("keys") / "upstream.key"
    key_file.write_text(KEY)
    with LoopbackUpstream() as upstream:
        root = upstream.base_url.removesuffix("/v1")
        lines = {
            name: f'dialect = "{twin.dialect}"\napi_key_file = "{key_file}"\n{twin.provider_toml}'
            for name, twin in TWINS.items()
        }
        spec = ServiceSpec(
            providers={name: f"{root}{twin.base_path}" for name, twin in TWINS.items()},
            routes={"forte": [RouteSpec("vllm", MODEL)]},
            provider_toml=lines,
        )
        with Service(spec) as service:
            yield Stage(service, upstream, spec)


@pytest.fixture(scope="module", params=TWINS)
def spoken(request: pytest.FixtureRequest, stage: Stage) -> Stage:
    """The stage with each twin in turn."""
    stage.switch(request.param)
    return stage
