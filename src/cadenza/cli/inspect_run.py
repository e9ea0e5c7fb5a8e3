"""`cadenza classes evaluate --inspect TASK`: both sides behind private endpoints, and Inspect in its own process."""

import tempfile
from pathlib import Path

import msgspec

from cadenza.app import known_cost
from cadenza.cli.private_service import CLASS_IDS, PrivateSide, private_service, read_spent
from cadenza.config import Settings
from cadenza.core.classes import ClassVersion
from cadenza.core.records import Route
from cadenza.evaluation.inspect_tasks import InspectEndpoint, InspectOrder, InspectResult, find_program, run_inspect
from cadenza.evaluation.verdict import Verdict, reach_verdict
from cadenza.store.tables.verdicts import SIDES, Side


class InspectOutcome(msgspec.Struct, frozen=True):
    """What a task showed, and the verdict on it."""

    found: InspectResult
    verdict: Verdict


async def evaluate_with_inspect(
    settings: Settings, incumbent: ClassVersion, candidate: Route, order: InspectOrder, budget_nano: int
) -> InspectOutcome:
    """Compare the main routes of the incumbent with the candidate. All content is in a folder that is deleted."""
    find_program(order.program)
    routes: dict[Side, tuple[Route, ...]] = {"incumbent": incumbent.main_routes, "candidate": (candidate,)}
    costs = {side: known_cost(settings, routes[side]) for side in SIDES}
    price = settings.prices[incumbent.class_id]
    sides = {side: PrivateSide(routes[side], incumbent.character, costs[side] or price) for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="cadenza-inspect-") as name:
        folder = Path(name)
        async with private_service(settings, sides, budget_nano, folder, 2 * order.connections) as service:
            endpoints = [
                InspectEndpoint(
                    side=side,
                    base_url=service.base_url,
                    token=service.tokens[side],
                    model=CLASS_IDS[side],
                    cost=costs[side],
                )
                for side in SIDES
            ]
            found = await run_inspect(order, endpoints, folder)
        spent_nano = await read_spent(folder, budget_nano)
    return InspectOutcome(found, reach_verdict(found.cases, found.scores, order.epochs, spent_nano=spent_nano))
