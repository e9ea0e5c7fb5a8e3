"""Follows redirects. Each step is a new request: its URL, name and addresses are checked as those of the first."""

from collections.abc import Awaitable, Callable

from cadenza.grounding.search.pages.body import NOTHING, Allowance
from cadenza.grounding.search.pages.page_client import Admit, Answer, Headers, PageClient
from cadenza.grounding.search.pages.target import Target, redirect_target
from cadenza.grounding.search.records import FetchFailed

REDIRECTS = {301, 302, 303, 307, 308}
Permit = Callable[[Target], Awaitable[None]]  # FetchFailed if the target must not be fetched


async def permit_all(_target: Target) -> None:
    """Nothing is asked before a request."""


async def get_following(
    client: PageClient, target: Target, admit: Admit, redirects_max: int, permit: Permit = permit_all
) -> tuple[Target, Answer]:
    """The answer that is not a redirect, and where it came from. A redirect to an earlier step ends at once."""

    def admit_redirects(status: int, headers: Headers) -> Allowance:
        return NOTHING if status in REDIRECTS and b"location" in headers else admit(status, headers)

    seen = set[str]()
    for _ in range(redirects_max + 1):
        if target.url in seen:
            break
        seen.add(target.url)
        await permit(target)
        answer = await client.get(target, admit_redirects)
        location = answer.headers.get(b"location")
        if answer.status not in REDIRECTS or location is None:
            return target, answer
        target = redirect_target(target, location)
    raise FetchFailed("redirects")
