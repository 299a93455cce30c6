"""Applications for `spark-submit` that use the source. `commands` lists them. Each says what it guarantees.

    audit             checks that a topic or an archive is complete, in order and without repeats
    traffic           rates, the partitions and keys with most messages, and the lag of readers
    archive           writes all messages of a stream into Parquet files
    apply             merges a stream of changes into a table of the newest value of each key
    replay            sends rows of a topic or an archive to a topic
    mirror            copies a topic into a topic of another cluster
    commands          the command line: one command for each pipeline
    copy_commands     those that write to topics: `replay` and `mirror`
    command_line      what the commands share: options of source and sink, and the display of errors
    session           the Spark session of a pipeline, and the life of its streaming query
    micro_batches     what the pipelines that write directories share
    metrics           what the driver of a pipeline serves to Prometheus
    metrics_listener  gives the progress that Spark reports to these metrics

Start them with `python -m seriatim_spark NAME`.
"""
