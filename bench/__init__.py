"""Measurements. They are no tests: each prints what it found, for whoever wants to know what a thing costs."""
