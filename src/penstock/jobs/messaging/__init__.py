"""Jobs and events as messages, out and in."""
