"""Stripe on this machine: localstripe, which keeps payments and sends signed events, with Checkout added to it."""
