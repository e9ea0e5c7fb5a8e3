"""The store of the gateway's tests."""

from tests.unit.gateway.conftest import funded

__all__ = ["funded"]
