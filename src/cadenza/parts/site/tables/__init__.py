"""The rows that only the site reads and writes."""
