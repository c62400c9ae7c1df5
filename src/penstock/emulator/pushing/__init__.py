"""Push subscriptions: messages go to an HTTP endpoint, which acks by answering."""
