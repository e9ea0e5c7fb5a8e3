"""LangChain: ChatOpenAI, with its calls put together from the chunks of a stream, on either API."""

from functools import reduce
from operator import add

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tests.clients.programs.weather import API_KEY, BASE_URL, QUESTION, Report, Weather, tell


def main(*, on_responses: bool) -> None:
    model = ChatOpenAI(model="auto", base_url=BASE_URL, api_key=API_KEY, use_responses_api=on_responses)
    weather = Weather()
    agent = model.bind_tools([weather.get_weather])
    asked = HumanMessage(QUESTION)
    called = reduce(add, agent.stream([asked]))
    results = [
        ToolMessage(str(weather.get_weather(**call["args"])), tool_call_id=call["id"]) for call in called.tool_calls
    ]
    tell(
        plain=model.invoke("Hello.").text,
        stream=[chunk.text for chunk in model.stream("Hello.")],
        calls=weather.calls,
        results=agent.invoke([asked, called, *results]).text,
        report=model.with_structured_output(Report).invoke(QUESTION),
    )


if __name__ == "__main__":
    main(on_responses=False)
