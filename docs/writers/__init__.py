"""Writes the pages that follow from the program: `make docs`."""
