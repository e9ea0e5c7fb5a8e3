"""The line of grounding on the start screen: its sources that are on."""

from cadenza.config import Settings
from cadenza.parts.grounding.settings import GroundingSettings
from cadenza.terminal.checks import Screen


def describe(settings: Settings) -> list[tuple[str, str]]:
    given = GroundingSettings.given_in(settings)
    on = [name for name, is_on in (("files", given.attachments), ("memory", given.memory)) if is_on]
    if given.search.engine != "off":
        on.append(f"web search by {given.search.engine}")
    return [("Grounding", ", ".join(on) or "turned off in the config")]


screen: Screen = describe
