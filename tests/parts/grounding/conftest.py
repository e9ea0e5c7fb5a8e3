"""What tests of the gateway, the contract, stores, faults and pages have."""

from tests.contract.conftest import account, api, api_as, async_client, client, protocol
from tests.fault.conftest import deploy, rig, shared_rig
from tests.parts.site.web.conftest import email, operator, other, stranger, visitor
from tests.store.conftest import databases, make_url, postgres, store, url
from tests.unit.gateway.conftest import funded

# fmt: off
__all__ = [
    "account", "api", "api_as", "async_client", "client", "databases", "deploy", "email", "funded",
    "make_url", "operator", "other", "postgres", "protocol", "rig", "shared_rig", "store", "stranger", "url", "visitor",
]
