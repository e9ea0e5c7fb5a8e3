"""Traces and metrics for an OpenTelemetry collector."""
