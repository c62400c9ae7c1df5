"""Rules without I/O: facts in, decisions out, time as an argument."""
