"""The memory of large bodies: shares of keys and accounts, small bodies, and accounts that cannot pay."""

import pytest

from cadenza.core.errors import InsufficientCredit, RateLimited
from cadenza.core.records import Principal
from cadenza.gateway.uploads import SMALL_BYTES, UNPAID_BYTES, Upload, Uploads
from cadenza.http.body import MIB, BodyMemory
from cadenza.observe import Metrics

POOL_MIB = 512
LARGEST_MIB = 32


class Pool:
    """All uploads of a service with 512 MiB for them."""

    def __init__(self) -> None:
        self.memory = BodyMemory(POOL_MIB * MIB)
        self.metrics = Metrics()
        self.uploads = Uploads(self.memory, self.metrics)

    def open(self, key: str = "key_a", account: str = "acct_a", balance_nano: int = 100, least_nano: int = 1) -> Upload:
        principal = Principal(key, account, frozenset(), "forte", balance_nano=balance_nano)
        return Upload(self.uploads, principal, least_nano)

    def fill(self, key: str, account: str) -> int:
        """Take as many MiB as one key may; return how many they are."""
        taken, upload = 0, self.open(key, account)
        while True:
            try:
                upload.take(MIB)
            except RateLimited:
                return taken
            taken += 1

    @property
    def free_mib(self) -> int:
        return self.memory.free_bytes // MIB


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_a_key_gets_a_quarter_and_an_account_a_half(pool: Pool) -> None:
    """However many keys an account has, half of the memory is left for others."""
    assert pool.fill("key_a", "acct_a") == POOL_MIB // 4
    assert pool.fill("key_b", "acct_a") == POOL_MIB // 4 * 3 // 4
    for number in range(10):
        pool.fill(f"key_{number}", "acct_a")
    assert pool.free_mib == POOL_MIB // 2


def test_one_largest_body_is_always_accepted(pool: Pool) -> None:
    """A key without other bodies may take 32 MiB while there are 32 MiB, even if its share were less."""
    pool.memory.take((POOL_MIB - LARGEST_MIB) * MIB)
    upload = pool.open()
    upload.expect(LARGEST_MIB * MIB)
    for _ in range(LARGEST_MIB):
        upload.take(MIB)
    assert pool.free_mib == 0
    with pytest.raises(RateLimited, match="The service has"):
        pool.open("key_b", "acct_b").expect(MIB)


def test_the_refusal_says_whose_share_is_full(pool: Pool) -> None:
    """A refused body is a 429 that names the key or the account, and is counted."""
    pool.fill("key_a", "acct_a")
    with pytest.raises(RateLimited, match="This key has"):
        pool.open("key_a", "acct_a").expect(MIB)
    for key in "bcdefghi":
        pool.fill(f"key_{key}", "acct_a")
    before = pool.metrics.registry.get_sample_value("cadenza_refused_total", {"reason": "uploads"})
    with pytest.raises(RateLimited, match="This account has"):
        pool.open("key_z", "acct_a").take(LARGEST_MIB * MIB)
    after = pool.metrics.registry.get_sample_value("cadenza_refused_total", {"reason": "uploads"})
    assert before is not None
    assert after == before + 1


def test_a_small_body_takes_nothing(pool: Pool) -> None:
    """It is accepted even where all memory is taken; with the first byte more, all of a body counts."""
    small, larger = pool.open(), pool.open()
    small.take(SMALL_BYTES)
    larger.take(SMALL_BYTES)
    larger.take(1)
    assert pool.memory.free_bytes == POOL_MIB * MIB - SMALL_BYTES - 1
    pool.memory.take(pool.memory.free_bytes)
    last = pool.open()
    last.expect(SMALL_BYTES)
    last.take(SMALL_BYTES)


def test_everything_is_given_back(pool: Pool) -> None:
    """After their requests have ended, keys and accounts have taken nothing and are not remembered."""
    uploads = [pool.open(f"key_{number}") for number in range(3)]
    for upload in uploads:
        upload.take(MIB)
    assert len(pool.uploads) == 4
    for upload in uploads:
        upload.release(MIB)
        upload.release(MIB)
    assert (len(pool.uploads), pool.free_mib) == (0, POOL_MIB)


@pytest.mark.parametrize(("balance_nano", "least_nano", "is_refused"), [(0, 1, True), (1, 1, False), (0, 0, False)])
def test_an_account_that_can_pay_for_nothing_is_refused(
    pool: Pool, balance_nano: int, least_nano: int, is_refused: bool
) -> None:
    """Above 4 KiB, a body, announced or not, is a 402 unless the account can pay the cheapest answer."""
    upload = pool.open(balance_nano=balance_nano, least_nano=least_nano)
    upload.expect(UNPAID_BYTES)
    upload.take(UNPAID_BYTES)
    if not is_refused:
        upload.expect(MIB)
        upload.take(1)
        return
    with pytest.raises(InsufficientCredit):
        upload.expect(UNPAID_BYTES + 1)
    with pytest.raises(InsufficientCredit):
        upload.take(1)
    assert pool.free_mib == POOL_MIB
