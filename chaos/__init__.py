"""Trials that take longer than a test may."""
