"""How programs of others are connected: the settings of each, for `cadenza connect` and the page of a new key.

Whatever stands here was tried with the version that docs/clients.md names.
"""

from string import Template

import msgspec

SCOPES = ("inference", "models")  # of a key for a client


class ClientSettings(msgspec.Struct, frozen=True):
    """The settings of a client as text in which `$url`, `$key` and `$model` stand for what is filled in."""

    title: str  # also of its section in docs/clients.md
    file: str  # where it reads them; empty if they are commands of a shell
    start: str  # the command that starts it
    text: str

    @property
    def kind(self) -> str:
        """The format of the file: json, toml or yml."""
        return self.file.rpartition(".")[2]

    def fill(self, url: str, key: str, model: str = "auto") -> str:
        """`url` is the address of the service, without /v1."""
        return Template(self.text).substitute(url=url, key=key, model=model)


CLIENTS = {
    "codex": ClientSettings(
        "Codex",
        "~/.codex/config.toml",
        "codex",
        """\
model = "$model"
model_provider = "cadenza"

[model_providers.cadenza]
name = "Cadenza"
base_url = "$url/v1"
wire_api = "responses"
experimental_bearer_token = "$key"
""",
    ),
    "claude": ClientSettings(
        "Claude Code",
        "~/.claude/settings.json",
        "claude",
        """\
{
  "env": {
    "ANTHROPIC_BASE_URL": "$url",
    "ANTHROPIC_AUTH_TOKEN": "$key",
    "ANTHROPIC_MODEL": "$model"
  }
}
""",
    ),
    "opencode": ClientSettings(
        "opencode",
        "~/.config/opencode/opencode.json",
        "opencode",
        """\
{
  "provider": {
    "cadenza": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "$url/v1", "apiKey": "$key"},
      "models": {"$model": {"limit": {"context": 200000, "output": 32000}}}
    }
  },
  "model": "cadenza/$model"
}
""",
    ),
    "qwen": ClientSettings(
        "Qwen Code",
        "~/.qwen/settings.json",
        "qwen",
        """\
{
  "env": {"CADENZA_API_KEY": "$key"},
  "modelProviders": {
    "openai": [
      {"id": "$model", "name": "Cadenza", "baseUrl": "$url/v1", "envKey": "CADENZA_API_KEY"}
    ]
  },
  "security": {"auth": {"selectedType": "openai"}},
  "model": {"name": "$model"}
}
""",
    ),
    "continue": ClientSettings(
        "Continue",
        "~/.continue/config.yaml",
        "cn",
        """\
name: Cadenza
version: 1.0.0
schema: v1
models:
  - name: Cadenza
    provider: openai
    model: "$model"
    apiBase: "$url/v1"
    apiKey: "$key"
""",
    ),
    "aider": ClientSettings(
        "aider",
        "~/.aider.conf.yml",
        "aider",
        """\
model: "openai/$model"
openai-api-base: "$url/v1"
openai-api-key: "$key"
show-model-warnings: false
analytics-disable: true
""",
    ),
    "openai": ClientSettings(
        "OpenAI for Python",
        "",
        "your program",
        """\
export OPENAI_BASE_URL="$url/v1"
export OPENAI_API_KEY="$key"
""",
    ),
}
