"""The read model and what feeds it."""
