"""Typed jobs that flow through stages."""
