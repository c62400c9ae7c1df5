"""Commands around bridges."""
