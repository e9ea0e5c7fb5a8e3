"""One service with a provider for each twin, all on one loopback port. The class forte is switched to a twin."""

from collections.abc import Iterator

import pytest

from tests.contract.dialects.stage import TWINS, Stage
from tests.contract.dialects.twin import KEY, MODEL
from tests.loopback import LoopbackUpstream
from tests.service import Service
from tests.service_config import RouteSpec, ServiceSpec


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
def twin_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def spoken(twin_name: str, stage: Stage) -> Stage:
    """The stage with each twin in turn."""
    stage.switch(twin_name)
    return stage
