"""Subscriptions as streams, through a spool."""
