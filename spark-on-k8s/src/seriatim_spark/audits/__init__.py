"""Audits of rows: are they complete, in order and without repeats? Nothing here needs Spark.

The pipeline `audit` uses both modules: tasks and the driver follow the rows, and then the driver counts.

    coverage         ranges that were read in one go, and how they fit one after another
    expected_counts  the number of rows that there should be, from brokers or from the notes of an archive
"""
