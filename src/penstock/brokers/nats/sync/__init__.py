"""JetStream on a blocking socket, for code that has a process to itself."""
