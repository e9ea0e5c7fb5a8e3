"""The Python clients that are tested, and where their examples are."""

import msgspec


class PythonClient(msgspec.Struct, frozen=True):
    """Its environment, and its section of the page of clients, if the example there is a program."""

    environment: str
    section: str = ""


# By the name of its program.
PYTHON_CLIENTS = {
    "agent_framework": PythonClient("openai-3", "Microsoft Agent Framework"),
    "instructor": PythonClient("openai-2", "Instructor"),
    "langchain": PythonClient("openai-3", "LangChain"),
    "langchain_responses": PythonClient("openai-3"),
    "llama_index": PythonClient("openai-2", "LlamaIndex"),
    "llm": PythonClient("openai-3"),
    "openai_agents": PythonClient("openai-3", "OpenAI Agents SDK"),
    "openai_agents_responses": PythonClient("openai-3"),
    "pydantic_ai": PythonClient("openai-3", "Pydantic AI"),
    "pydantic_ai_responses": PythonClient("openai-3"),
}
