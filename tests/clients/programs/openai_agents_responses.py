"""The OpenAI Agents SDK on the Responses API, its default."""

import asyncio

from tests.clients.programs.openai_agents import main

asyncio.run(main("responses"))
