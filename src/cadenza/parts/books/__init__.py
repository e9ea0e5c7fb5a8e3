"""Months, margins and the bills of providers."""
