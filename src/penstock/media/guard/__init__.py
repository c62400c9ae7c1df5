"""Reading what strangers made, in a process that can do no harm."""
