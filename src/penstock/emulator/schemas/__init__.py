"""Schemas: what they say, their revisions, and the topics that ask for them."""
