"""Pages of credit, payments, statement and usage."""
