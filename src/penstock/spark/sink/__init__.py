"""Rows to messages."""
