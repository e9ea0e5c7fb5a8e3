"""LangChain on the Responses API."""

from tests.clients.programs.langchain import main

main(on_responses=True)
