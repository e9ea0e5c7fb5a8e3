"""Pydantic AI: agents on either API; the one with the tool streams."""

import asyncio

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.programs.weather import API_KEY, BASE_URL, QUESTION, Report, Weather, tell

PROVIDER = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)


async def main(model: Model) -> None:
    weather = Weather()
    async with Agent(model).run_stream("Hello.") as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]
    async with Agent(model, tools=[weather.get_weather]).run_stream(QUESTION) as streamed:
        results = await streamed.get_output()
    report = await Agent(model, output_type=NativeOutput(Report)).run(QUESTION)
    by_tool = await Agent(model, output_type=Report).run(QUESTION)
    assert by_tool.output == report.output
    plain = await Agent(model).run("Hello.")
    tell(plain=plain.output, stream=pieces, calls=weather.calls, results=results, report=report.output)


if __name__ == "__main__":
    asyncio.run(main(OpenAIChatModel("auto", provider=PROVIDER)))
