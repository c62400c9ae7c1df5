"""Google Pub/Sub's protocol: its messages and its calls, for whoever speaks or serves it."""
