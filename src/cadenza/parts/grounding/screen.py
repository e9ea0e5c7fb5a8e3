"""The line of grounding on the start screen: its sources that are on."""

from cadenza.parts.grounding.settings import GroundingSettings
from cadenza.terminal.checks import Lines, Screen, StartFacts


async def describe(start: StartFacts) -> Lines:
    given = GroundingSettings.given_in(start.settings)
    on = [name for name, is_on in (("files", given.attachments), ("memory", given.memory)) if is_on]
    if given.search.engine != "off":
        on.append(f"web search by {given.search.engine}")
    return [("Grounding", ", ".join(on) or "turned off in the config")]


screen: Screen = describe
