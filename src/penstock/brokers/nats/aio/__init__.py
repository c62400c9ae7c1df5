"""JetStream on nats-py's connection, for programs with an event loop."""
