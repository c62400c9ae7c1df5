"""What JetStream says and expects, as bytes and values. No I/O."""
