"""What a job is, how it may move, its wire form. Pure."""
