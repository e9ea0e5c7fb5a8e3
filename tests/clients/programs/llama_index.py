"""LlamaIndex: OpenAILike, with its calls read from the last chunk of a stream."""

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.clients.programs.weather import API_KEY, BASE_URL, QUESTION, Report, Weather, tell

llm = OpenAILike(model="auto", api_base=BASE_URL, api_key=API_KEY, is_chat_model=True, is_function_calling_model=True)
weather = Weather()
tool = FunctionTool.from_defaults(weather.get_weather)
asked = ChatMessage(QUESTION)
*_, last = llm.stream_chat_with_tools([tool], chat_history=[asked])
results = [
    ChatMessage(
        str(weather.get_weather(**call.tool_kwargs)), role="tool", additional_kwargs={"tool_call_id": call.tool_id}
    )
    for call in llm.get_tool_calls_from_response(last)
]
tell(
    plain=llm.chat([asked]).message.content,
    stream=[chunk.delta for chunk in llm.stream_chat([asked])],
    calls=weather.calls,
    results=llm.chat_with_tools([tool], chat_history=[asked, last.message, *results]).message.content,
    report=llm.structured_predict(Report, PromptTemplate(QUESTION)),
)
