"""Microsoft's Agent Framework on the Responses API, its default; the agent with the tool streams."""

import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient

from tests.clients.programs.weather import API_KEY, BASE_URL, QUESTION, Report, Weather, tell


async def main() -> None:
    client = OpenAIChatClient(model="auto", base_url=BASE_URL, api_key=API_KEY)
    weather = Weather()
    greeter = Agent(client, default_options={"store": False})
    contents = [content async for update in greeter.run("Hello.", stream=True) for content in update.contents]
    forecaster = Agent(client, tools=[weather.get_weather], default_options={"store": False})
    running = forecaster.run(QUESTION, stream=True)
    async for _ in running:
        pass
    results = await running.get_final_response()
    report = await greeter.run(QUESTION, options={"response_format": Report})
    plain = await greeter.run("Hello.")
    tell(
        plain=plain.text,
        stream=[content.text for content in contents if content.merge_mode == "append"],  # not those at the end
        calls=weather.calls,
        results=results.text,
        report=report.value,
    )


asyncio.run(main())
