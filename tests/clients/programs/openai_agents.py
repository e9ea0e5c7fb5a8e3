"""The OpenAI Agents SDK without tracing, on either API. The agent with the tool streams."""

import asyncio
from typing import Literal

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents import set_default_openai_api as set_api
from agents import set_default_openai_client as set_client
from openai import AsyncOpenAI

from tests.clients.programs.weather import API_KEY, BASE_URL, QUESTION, Report, Weather, tell


async def main(api: Literal["chat_completions", "responses"]) -> None:
    set_client(AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY), use_for_tracing=False)
    set_api(api)
    set_tracing_disabled(True)
    weather = Weather()
    greeter = Agent(name="greeter", model="auto")
    events = [event async for event in Runner.run_streamed(greeter, "Hello.").stream_events()]
    deltas = [event.data for event in events if event.type == "raw_response_event"]
    forecaster = Agent(name="forecaster", model="auto", tools=[function_tool(weather.get_weather)])
    running = Runner.run_streamed(forecaster, QUESTION)
    async for _ in running.stream_events():
        pass
    report = await Runner.run(Agent(name="reporter", model="auto", output_type=Report), QUESTION)
    plain = await Runner.run(greeter, "Hello.")
    tell(
        plain=plain.final_output,
        stream=[delta.delta for delta in deltas if delta.type == "response.output_text.delta"],
        calls=weather.calls,
        results=running.final_output,
        report=report.final_output,
    )


if __name__ == "__main__":
    asyncio.run(main("chat_completions"))
