"""Password hashes that cost little, for tests that are not about hashing."""

import functools

from argon2 import PasswordHasher


@functools.cache
def cheap_hash(password: str) -> str:
    """A hash has its cost in it: a real one is checked in a tenth of a second, this one in less than a millisecond."""
    return PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(password)
