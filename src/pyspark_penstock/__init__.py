"""Registers `format("penstock")`: Spark imports every module named `pyspark_*` and takes its
`DefaultSource`. Whatever is imported here is imported by every Spark session."""

from penstock.spark.data_source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
