"""Password hashes that cost little, for tests that are not about hashing."""

import functools

from argon2 import PasswordHasher


@functools.cache
def cheap_hash(password: str) -> str:
    """A hash has its cost in it. This one is checked in less than a millisecond, and a real one in a tenth of a second."""
    return PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(password)
