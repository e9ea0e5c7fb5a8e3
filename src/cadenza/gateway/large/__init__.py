"""Large bodies are parsed and counted in child processes, because JSON decoding holds the interpreter's lock."""
