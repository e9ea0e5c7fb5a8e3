"""One tokenizer for the tests: what the service counts, they count too."""

from cadenza.core.tokens import Tokenizer

_TOKENIZER = Tokenizer()
count_tokens = _TOKENIZER.count
count_prompt = _TOKENIZER.count_prompt
