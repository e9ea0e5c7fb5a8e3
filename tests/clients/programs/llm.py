"""LLM's Python interface, on a model that its settings folder declares."""

import os
from pathlib import Path

import llm

from tests.clients.programs.weather import API_KEY, BASE_URL, QUESTION, Report, Weather, tell

DECLARED = """
- model_id: cadenza
  model_name: auto
  api_base: {}
  api_key_name: cadenza
  supports_tools: true
  supports_schema: true
"""
(Path(os.environ["LLM_USER_PATH"]) / "extra-openai-models.yaml").write_text(DECLARED.format(BASE_URL))
weather = Weather()
model = llm.get_model("cadenza")
model.key = API_KEY
tool = llm.Tool.function(weather.get_weather)
tell(
    plain=model.prompt("Hello.", stream=False).text(),
    stream=list(model.prompt("Hello.")),
    calls=weather.calls,
    results=model.chain(QUESTION, tools=[tool]).text(),
    report=Report.model_validate_json(model.prompt(QUESTION, schema=Report).text()),
)
