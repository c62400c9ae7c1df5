"""Commands around apps."""
