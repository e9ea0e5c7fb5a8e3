"""Benchmarks. They measure and report; they do not pass or fail like tests."""
