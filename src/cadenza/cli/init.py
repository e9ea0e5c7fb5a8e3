"""cadenza init: three questions, one request, and a config file that works."""

from pathlib import Path

import click

from cadenza.cli.first_config import InitOptions, set_up


@click.command()
@click.option("--provider", metavar="NAME", help="A known provider or model server, or your own name for --url.")
@click.option("--url", metavar="URL", help="The base address of any other endpoint that speaks the OpenAI format.")
@click.option("--model", metavar="NAME", help="The model, as the provider names it.")
@click.option("--key-env", metavar="VARIABLE", help="The environment variable that has the provider's key.")
@click.option(
    "--config",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default="cadenza.toml",
    show_default=True,
    help="The file to write.",
)
@click.option("--yes", is_flag=True, help="Ask nothing, and overwrite the file if there is one.")
def init(provider: str | None, url: str | None, model: str | None, key_env: str | None, file: Path, yes: bool) -> None:
    """Set up a model: find one on this machine or ask for a provider, try it, and write a config.

    Ollama, vLLM, llama.cpp, SGLang and LM Studio are found on this machine. Known providers are openai, anthropic,
    gemini, mistral, groq, together and openrouter.

    A key that you type goes into a file of its own that only you can read, never into the config. Without a terminal,
    give the options and --yes.
    """
    set_up(InitOptions(provider=provider, url=url, model=model, key_env=key_env, file=file, asks_nothing=yes))
