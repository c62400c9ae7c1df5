"""Where media comes from, and what may not be fetched."""
