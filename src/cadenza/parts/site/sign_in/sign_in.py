"""Signing in: checks passwords and codes, and limits how often they may be tried.

Limits are by network, by account and in total, where each network has a share that others cannot easily use up. A
browser that has signed in to the account before has limits of its own, so that nobody can lock an owner out. An unknown
address and a wrong password get the same text after the same amount of work.
"""

import msgspec

from cadenza.control.account.accounts import normal_email
from cadenza.core.errors import ControlError
from cadenza.core.rates import Rate
from cadenza.fleet.limits import Limit, network_limits, release, take_all
from cadenza.fleet.shared import Rates
from cadenza.parts.site.sign_in import throttle
from cadenza.parts.site.sign_in.devices import Signer, find_device
from cadenza.parts.site.sign_in.passwords import HashLane, PasswordWork
from cadenza.parts.site.sign_in.second_factor import Code, Sealer, use_second_factor
from cadenza.parts.site.sign_in.throttle import short_digest
from cadenza.parts.site.tables import second_factors
from cadenza.parts.site.tables.sessions import Session, Stage
from cadenza.store.store import Store, Transaction
from cadenza.store.tables import accounts
from cadenza.store.tables.accounts import Account

NETWORK_RATE = Rate(4.0, 100)  # all attempts of a network that need a hash
NETWORK_FAILURES = Rate(0.1, 6)  # so a /48 of IPv6 has 24 at once, however many networks it is split into
ALL_FAILURES = Rate(2.0, 300)  # of all networks, by browsers that have not signed in to the account before
SHARE_FAILURES = Rate(1 / 1800, 3)  # of one network, once all together have used up theirs
ACCOUNT_FAILURES = Rate(1 / 60, 10)  # by browsers that have not signed in to it before
ALL = Limit("sign-in:failed", ALL_FAILURES)
DEVICE_RATE = Rate(0.5, 20)
KNOWN_RATE = Rate(0.5, 30)  # of one account, by all its browsers together
DEVICE_FAILURES = Rate(1 / 30, 10)
CODE_FAILURES = Rate(1 / 300, 5)
RECOVERY_FAILURES = Rate(1 / 60, 10)
PROOF_FAILURES = Rate(1 / 60, 10)
WRONG_PASSWORD = "No account has this e-mail address and password."  # noqa: S105 a sentence
TOO_MANY = "Too many attempts. Wait a while, or use a browser that you have signed in with before."
TOO_MANY_HERE = "Too many attempts. Wait a while, then try again."
SUSPENDED = "This account is suspended. Ask the operator of this service."


class SignInAttempt(msgspec.Struct, frozen=True):
    """What a browser sends to sign in, and what is known about the browser."""

    email: str
    password: str
    address: str
    device: str  # the cookie of a browser that has signed in before


class Checked(msgspec.Struct, frozen=True):
    """An account whose password was right, the first stage of its session, and the hash that was checked."""

    account: Account
    stage: Stage
    password_hash: str

    def require_unchanged(self, tx: Transaction) -> None:
        """ControlError if the password was changed since: checking takes a while, and a change ends all sessions."""
        if not accounts.has_password(tx, self.account.id, self.password_hash):
            raise ControlError(WRONG_PASSWORD)


class SignIns:
    """Checks who signs in, for one process."""

    def __init__(
        self, store: Store, rates: Rates, passwords: PasswordWork, signer: Signer, sealer: Sealer | None = None
    ) -> None:
        self.passwords = passwords
        self.signer = signer
        self.sealer = sealer or Sealer(store)
        self._store = store
        self._rates = rates

    async def check_password(self, attempt: SignInAttempt) -> Checked:
        """The account, and whether it needs a second factor. ControlError if the sign-in is refused."""
        normal = normal_email(attempt.email)
        found = await accounts.get_with_password(self._store, normal) if normal else None
        account, password_hash = found or (None, None)
        device = await find_device(self.signer, attempt.device, account.id if account else "")
        attempts, failures = _limits(attempt, normal or attempt.email, device)
        if account and device:
            attempts.append(_known_limit(account))
        await throttle.take(self._rates, attempts + failures, TOO_MANY)
        if not device:
            failures += await self._take_of_all(attempt.address, attempts + failures)
        lane = HashLane.KNOWN if device else HashLane.OTHERS
        try:
            is_right = await self.passwords.matches(password_hash, attempt.password, lane)
        except throttle.Throttled:
            release(self._rates, failures)
            raise
        if account is None or password_hash is None or not is_right:
            raise ControlError(WRONG_PASSWORD)
        release(self._rates, failures)
        return Checked(account, await self.stage_after_password(account), password_hash)

    async def _take_of_all(self, address: str, taken: list[Limit]) -> list[Limit]:
        """Take an attempt from those of all networks; once these are used up, from the share of the network.

        The shares are limited in all too: many networks together may fail as often again, and no more.
        """
        share = [*network_limits("sign-in:share", address, SHARE_FAILURES), Limit("sign-in:shares", ALL_FAILURES)]
        if await take_all(self._rates, [ALL]) is None:
            return [ALL]
        if refused := await take_all(self._rates, share):
            release(self._rates, taken)
            raise throttle.Throttled(TOO_MANY, refused.wait_s)
        return share

    async def stage_after_password(self, account: Account) -> Stage:
        if account.suspended_at is not None:
            raise ControlError(SUSPENDED)
        factors = await second_factors.get_factors(self._store, account.id)
        return "second_factor" if factors.is_any else "complete"

    async def check_code(self, account: Account, code: str, device_cookie: str, now_ms: int) -> None:
        """Use a code of the authenticator app, or a recovery code. ControlError if it is wrong or was used before."""
        given = Code.parse(code)
        device = await find_device(self.signer, device_cookie, account.id)
        of_whom = f"device:{short_digest(device)}" if device else f"account:{account.id}"
        rate = RECOVERY_FAILURES if given.is_recovery else CODE_FAILURES
        limits = [Limit(f"code:{given.is_recovery}:{of_whom}", rate)]
        await throttle.take(self._rates, limits, TOO_MANY_HERE)
        await use_second_factor(self._store, self.sealer, account, given, now_ms)
        release(self._rates, limits)

    async def check_again(self, account: Account, session: Session, password: str) -> None:
        """Check the password of somebody who is signed in already. ControlError if it is wrong."""
        failures = [Limit(f"proof:{session.digest.hex()}", PROOF_FAILURES)]
        await throttle.take(self._rates, [_known_limit(account), *failures], TOO_MANY_HERE)
        password_hash = await accounts.get_password(self._store, account.id)
        if not await self.passwords.matches(password_hash, password, HashLane.KNOWN):
            raise ControlError("This is not your password.")
        release(self._rates, failures)


def _known_limit(account: Account) -> Limit:
    """A limit on all hashes for the known browsers of one account, so that no account fills their queue."""
    return Limit(f"sign-in:known:{account.id}", KNOWN_RATE)


def _limits(attempt: SignInAttempt, email: str, device: str | None) -> tuple[list[Limit], list[Limit]]:
    """Limits on all attempts, and limits on failures."""
    if device:
        of_device = f"sign-in:device:{short_digest(device)}"
        return [Limit(of_device, DEVICE_RATE)], [Limit(f"{of_device}:failed", DEVICE_FAILURES)]
    attempts = network_limits("sign-in:network", attempt.address, NETWORK_RATE)
    return attempts, [
        *network_limits("sign-in:network:failed", attempt.address, NETWORK_FAILURES),
        Limit(f"sign-in:account:{short_digest(email)}", ACCOUNT_FAILURES),
    ]
