"""Instructor: objects instead of text. It has no second turn, so the results are told by the program itself."""

from collections.abc import Iterable
from typing import Any

import instructor
from openai import OpenAI
from pydantic import create_model

from tests.clients.programs.weather import API_KEY, BASE_URL, QUESTION, Report, Weather, tell

get_weather = create_model("get_weather", city=(str, ...))
weather = Weather()
sdk = OpenAI(base_url=BASE_URL, api_key=API_KEY)
client = instructor.from_openai(sdk)
parallel = instructor.from_openai(sdk, mode=instructor.Mode.PARALLEL_TOOLS)
ask: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": QUESTION}]}
results = [
    str(weather.get_weather(**call.model_dump()))
    for call in parallel.create(**ask, response_model=Iterable[get_weather])  # type: ignore[valid-type]
]
*_, report = client.create_partial(**ask, response_model=Report)
assert client.create(**ask, response_model=Report).model_dump() == report.model_dump()
chunks = list(client.create(**ask, response_model=None, stream=True))
tell(
    plain=client.create(**ask, response_model=None).choices[0].message.content,
    stream=[chunk.choices[0].delta.content for chunk in chunks if chunk.choices],
    calls=weather.calls,
    results=", ".join(results),
    report=report,
)
