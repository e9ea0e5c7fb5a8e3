"""The OpenAI Agents SDK, on chat completions and without tracing; the agent with the tool streams."""

import asyncio

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents import set_default_openai_api as set_api
from agents import set_default_openai_client as set_client
from openai import AsyncOpenAI

from tests.clients.programs.weather import API_KEY, BASE_URL, QUESTION, Report, Weather, tell


async def main() -> None:
    set_client(AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY), use_for_tracing=False)
    set_api("chat_completions")
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


asyncio.run(main())
