"""Commands around jobs."""
