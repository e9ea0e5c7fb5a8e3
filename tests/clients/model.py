"""The upstream that client libraries talk to: it answers, calls tools in parallel, and fills in a schema.

It decides by the request alone, so that one upstream serves every client in any order. All calls of a turn are in one
chunk, as Mistral's server sends them: the service must split them, because LlamaIndex reads only the first.
"""

import json
from collections.abc import Iterable
from typing import Any

from tests.loopback import Json, Pause, Request, Reset, Sse, Step, chunk, completion, said, usage_chunk

GREETING = "Hello there, this is the upstream."
BREAK_OFF, SLOWLY = "Break off.", "Say it slowly."
CITIES = {"Oslo": 4, "Rome": 24}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
REPORT = {"city": "Oslo", "degrees": 4}
WEATHER_TOOL = "get_weather"
Call = tuple[str, dict[str, Any]]


class ClientModel:
    """Calls WEATHER_TOOL for each of the CITIES if it may, and reports their results. Fills in any other schema.

    | the request has | the reply |
    |---|---|
    | the question BREAK_OFF | a stream that breaks off |
    | the question SLOWLY | the first words of a stream that does not end |
    | results of tools | the results, joined by commas |
    | the tool WEATHER_TOOL | one call for each city |
    | another tool, or a response format | REPORT, as a call or as text |
    | none of them | GREETING |
    """

    def steps(self, request: Request) -> Iterable[Step]:
        asked = request.json
        is_stream = asked.get("stream", False)
        if asked["messages"][-1]["content"] in (BREAK_OFF, SLOWLY):
            end = Reset() if asked["messages"][-1]["content"] == BREAK_OFF else Pause()
            return Sse([said(GREETING), end]).steps(request)
        results = [_text(message["content"]) for message in asked["messages"] if message["role"] == "tool"]
        names = [tool["function"]["name"] for tool in asked.get("tools", [])]
        if results and WEATHER_TOOL in names:
            return _say(", ".join(results), is_stream=is_stream).steps(request)
        if WEATHER_TOOL in names:
            return _call([(WEATHER_TOOL, {"city": city}) for city in CITIES], is_stream=is_stream).steps(request)
        if names:
            return _call([(names[0], REPORT)], is_stream=is_stream).steps(request)
        text = json.dumps(REPORT) if asked.get("response_format") else GREETING
        return _say(text, is_stream=is_stream).steps(request)


def _say(text: str, *, is_stream: bool) -> Sse | Json:
    if not is_stream:
        return Json(completion(text))
    words = [said(word) for word in text.replace(" ", " \0").split("\0")]
    return Sse([chunk({"role": "assistant", "content": ""}), *words, chunk(finish="stop"), usage_chunk()])


def _call(calls: list[Call], *, is_stream: bool) -> Sse | Json:
    made = [
        {"index": place, "id": f"Mx{place:07d}", "type": "function", "function": _function(call)}
        for place, call in enumerate(calls)
    ]
    if is_stream:
        return Sse([chunk({"role": "assistant", "tool_calls": made}), chunk(finish="tool_calls"), usage_chunk()])
    reply = completion(None, "tool_calls")
    reply["choices"][0]["message"]["tool_calls"] = made
    return Json(reply)


def _function(call: Call) -> dict[str, str]:
    return {"name": call[0], "arguments": json.dumps(call[1])}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
