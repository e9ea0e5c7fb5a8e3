"""The money on the operator's overview."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from cadenza.core.spans import DAY_MS
from cadenza.parts.payments.takings import Takings, get_takings
from cadenza.parts.site.charts import Bars, Series, axis_dollars, stacked_bars
from cadenza.parts.site.render import day
from cadenza.parts.site.visit import Visit


async def panel_values(visit: Visit) -> Mapping[str, Any]:
    takings = await get_takings(visit.store, visit.now_ms)
    return {"money": takings, "paid_chart": _paid_chart(takings, visit.now_ms)}


def _paid_chart(money: Takings, now_ms: int) -> Markup:
    by_day = {one.day: one for one in money.days}
    days = range(money.start_ms // DAY_MS, now_ms // DAY_MS + 1)
    names = [day(one * DAY_MS) for one in days]
    paid = [by_day[one].paid_nano - by_day[one].returned_nano if one in by_day else 0 for one in days]
    labels = [name.rpartition(" ")[0] for name in names]
    title = "Payments by day. The table below has every number."
    return stacked_bars(Bars(title, labels, names, [Series("paid", 1, paid)], axis_dollars), has_patterns=False)
