"""The pages, and what writes those that follow from the program."""
