"""The verdicts on candidates, on the operator's page of a class and on /platform/api."""

from typing import Literal

import msgspec

from cadenza.parts.evaluation.verdict_rows import EvaluationRecord, list_newest
from cadenza.parts.site.joining import Pages
from cadenza.parts.site.operator.classes import ONE, class_named
from cadenza.parts.site.routes import Routes, endpoint
from cadenza.parts.site.visit import Panel, Visit

VERDICTS_SHOWN = 20


class VerdictList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest 20 evaluations of candidates for a class, newest first."""

    object: Literal["list"] = "list"
    data: list[EvaluationRecord]


async def list_verdicts(visit: Visit) -> VerdictList:
    class_id, _ = class_named(visit)
    return VerdictList(data=await list_newest(visit.store, class_id, VERDICTS_SHOWN))


async def show_verdicts(visit: Visit) -> dict[str, object]:
    return {"verdicts": (await list_verdicts(visit)).data}


ROUTES: Routes = (
    endpoint("GET", f"{ONE}/verdicts", "The verdicts on candidates", list_verdicts, "operator.classes:read"),
)
PAGES = Pages(routes=ROUTES, panels=(Panel(ONE, "evaluation/verdicts.html", show_verdicts),))
