"""Applications for `spark-submit` that use the source. `commands` lists them. Each says what it guarantees."""
