"""Applications for `spark-submit` that are built on the source. `commands` names them; each says what it promises."""
