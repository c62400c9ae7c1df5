"""`local://DIR`: a NATS server of our own."""
