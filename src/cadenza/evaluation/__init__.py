"""Evaluation of the models behind a class: suites, graders, verdicts, canary, watch."""
