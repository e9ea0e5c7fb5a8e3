"""Evaluation of the models behind a class: suites, graders, verdicts and the gate."""
