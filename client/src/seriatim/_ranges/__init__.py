"""Reading ranges of partitions without a consumer group: `questions` (offsets, plans), `reading` (the messages)."""
