"""Attacks on the real service, one file for each way to attack it. Each is bounded and takes seconds."""
