"""Commands around brokers: their topics, dead letters and servers."""
