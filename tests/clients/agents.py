"""Coding agents as they are installed, each with a home and a project of its own. They reach only the service."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tests.clients.model import Call
from tests.debian import CannotInstall
from tests.environment import environment
from tests.installed import AGENT_PINS, give_up, node_environment
from tests.service import Service, refusing_address

RUN_S = 120.0
CODEX_TOML = """
model = "auto"
model_provider = "cadenza"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.cadenza]
name = "Cadenza"
base_url = "BASE_URL"
env_key = "CADENZA_API_KEY"
wire_api = "responses"
"""
PATCH = """apply_patch <<'END'
*** Begin Patch
*** Update File: a.txt
@@
 one
-two
+three
*** End Patch
END"""
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}


class AgentKind(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between agents. A call is a tool's name and its arguments; FOLDER is the project."""

    program: str
    first: Sequence[str]  # the arguments of the first turn
    next: Sequence[str]  # and of those that continue it
    key_name: str
    variables: Mapping[str, str] = {}  # BASE_URL is the service's address
    read: Call
    edit: Call
    write: Call
    see: Call
    files: Mapping[str, str] = {}  # in its home
    stops_at_overflow: bool = False  # it compacts a conversation at the turn after the one that was too long


JSON_LINES = ("--skip-git-repo-check", "--json")
CLAUDE = ("-p", "--output-format", "stream-json", "--verbose", "--allowedTools=Read,Edit,Write")
AGENTS = {
    "codex": AgentKind(
        program="@openai/codex/bin/codex.js",
        first=("exec", *JSON_LINES),
        next=("exec", "resume", "--last", *JSON_LINES),
        key_name="CADENZA_API_KEY",
        read=("exec_command", {"cmd": "cat a.txt"}),
        edit=("exec_command", {"cmd": PATCH}),
        write=("exec_command", {"cmd": "echo new > b.txt"}),
        see=("view_image", {"path": "FOLDER/pixel.png"}),
        files={".codex/config.toml": CODEX_TOML},
        stops_at_overflow=True,
    ),
    "claude": AgentKind(
        program="@anthropic-ai/claude-code/cli-wrapper.cjs",
        first=CLAUDE,
        next=(*CLAUDE, "--continue"),
        key_name="ANTHROPIC_AUTH_TOKEN",
        variables={"ANTHROPIC_BASE_URL": "BASE_URL", **QUIET},
        read=("Read", {"file_path": "FOLDER/a.txt"}),
        edit=("Edit", {"file_path": "FOLDER/a.txt", "old_string": "two", "new_string": "three"}),
        write=("Write", {"file_path": "FOLDER/b.txt", "content": "new\n"}),
        see=("Read", {"file_path": "FOLDER/pixel.png"}),
    ),
}


class CodingAgent:
    """An agent that talks to a service."""

    def __init__(self, kind: AgentKind, service: Service, folder: Path) -> None:
        self.kind = kind
        self.project = folder / "project"
        self.project.mkdir()
        self._home, self._temporary = folder / "home", folder / "tmp"
        self._temporary.mkdir()
        self._turns = 0
        root = service.base_url.removesuffix("/v1")
        self._variables = {name: value.replace("BASE_URL", root) for name, value in kind.variables.items()}
        for name, text in kind.files.items():
            file = self._home / name
            file.parent.mkdir(parents=True)
            file.write_text(text.replace("BASE_URL", service.base_url))

    def call(self, made: Call) -> str:
        """A call of the model, as a transcript has it."""
        name, arguments = made
        return f"call:{name}{json.dumps(arguments)} finish:tool_calls".replace("FOLDER", str(self.project))

    def run(self, prompt: str, key: str) -> str:
        """What it prints in a turn that continues those before. It has no terminal and no network."""
        options = self.kind.next if self._turns else self.kind.first
        self._turns += 1
        try:
            packages = node_environment(AGENT_PINS) / "node_modules"
        except CannotInstall as reason:
            give_up(reason)
        with refusing_address() as nowhere:
            proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), nowhere)
            places = {"HOME": str(self._home), "TMPDIR": str(self._temporary)}
            variables = places | {self.kind.key_name: key, **proxies, **self._variables}
            done = subprocess.run(
                ["node", str(packages / self.kind.program), *options, prompt],
                cwd=self.project,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=RUN_S,
                check=False,
            )
        return done.stdout + done.stderr
