"""Topics as tables and streams, by sequence."""
