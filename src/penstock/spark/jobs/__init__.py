"""The stages of jobs as streaming queries."""
