"""Lets Spark find the format "seriatim". Spark imports every module called `pyspark_*` and asks for `DefaultSource`."""

from seriatim_spark.source import SeriatimSource as DefaultSource

__all__ = ["DefaultSource"]
