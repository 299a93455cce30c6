"""Spark imports every module called `pyspark_*` and looks for its `DefaultSource`: so it knows the format "seriatim"."""

from seriatim_spark.source import SeriatimSource as DefaultSource

__all__ = ["DefaultSource"]
