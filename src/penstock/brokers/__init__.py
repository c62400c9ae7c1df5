"""Adapters of the port, one package each. They know only the port and what is below it."""
