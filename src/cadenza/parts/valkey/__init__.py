"""Rates and slots in Valkey, for several processes or machines."""
