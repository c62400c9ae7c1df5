"""What operators do: subscriptions, snapshots and policies come, change and go."""
