"""Pydantic AI on the Responses API."""

import asyncio

from pydantic_ai.models.openai import OpenAIResponsesModel

from tests.clients.programs.pydantic_ai import PROVIDER, main

asyncio.run(main(OpenAIResponsesModel("auto", provider=PROVIDER)))
