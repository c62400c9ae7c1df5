"""Spark reads and writes topics: `format("penstock")`, and sessions that need no setting up."""

from penstock.spark.session.starting import activate, session

__all__ = ["activate", "session"]
