"""Payments by card and by bank transfer, and vouchers."""
