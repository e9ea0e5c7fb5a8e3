"""All twins, and a running service whose class forte is served by one of them."""

import contextlib
from collections.abc import Iterator

import msgspec
import openai

from tests.contract.dialects.hosts import HOSTS
from tests.contract.dialects.self_hosted import SELF_HOSTED
from tests.contract.dialects.twin import MODEL, Conversation, Twin
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
        self._spec = spec
        self._current = ("", "")  # the twin and the settings of its route

    @property
    def twin(self) -> Twin:
        return TWINS[self._current[0]]

    def switch(self, name: str, route_toml: str = "") -> None:
        """Serve forte with this twin. It costs nothing if that is so already."""
        if self._current == (name, route_toml):
            return
        routes = {"forte": [RouteSpec(name, MODEL, more_toml=route_toml)]}
        self.service.config.write_text(msgspec.structs.replace(self._spec, routes=routes).toml())
        self.service.reload()
        self._current = (name, route_toml)

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
        http_client = openai.DefaultHttpxClient(trust_env=False, verify=False)
        with openai.OpenAI(
            base_url=self.service.base_url, api_key=self.service.key, http_client=http_client, max_retries=0
        ) as made:
            yield made
