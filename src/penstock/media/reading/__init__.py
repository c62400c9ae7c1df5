"""What media holds: streams, sound, speech, text."""
