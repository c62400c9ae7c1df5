"""Stages: what they are, and one attempt at one job."""
