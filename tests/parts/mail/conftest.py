"""An event loop whose clock the test moves."""

from tests.unit.upstreams.clock import clock, pytest_asyncio_loop_factories

__all__ = ["clock", "pytest_asyncio_loop_factories"]
