"""How Spark writes a topic: tasks stage rows, and the driver publishes them at one moment.

A consumer reads staged rows only after they are published.

    sink           the sink as Spark sees it
    sink_options   its options: names, forms, defaults
    outgoing_rows  which columns rows may have, and to which partition each goes
    publishing     stages and publishes
    writers        writers of topics, as a driver program opens them
"""
