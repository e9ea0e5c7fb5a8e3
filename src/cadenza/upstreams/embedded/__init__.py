"""A language model inside this machine: llama.cpp in a supervised child process."""
