"""What subscribers do: pull, stream, ack, extend."""
