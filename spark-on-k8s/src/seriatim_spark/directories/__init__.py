"""What pipelines keep in a directory, on a disk of this machine or in a store. Nothing here needs Spark.

A file is put in place at one moment, so a reader sees it whole or not at all.

    files          files in a directory: put in place, read, listed
    batch_chain    which micro-batches a directory holds, so that none is missing, repeated or of an old driver
    archive_files  files of an archive: where they are, what they hold, how to write and check them
    archive_notes  notes of an archive about ranges, which its files alone cannot show
    replay_plan    which rows of which files each publication of a `replay` sends
    offset_map     which offset of the target of a `mirror` belongs to which offset of the source
"""
