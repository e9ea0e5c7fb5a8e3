"""The embedded model: SmolLM2, or any GGUF file, on llama.cpp in a child process on this machine."""
