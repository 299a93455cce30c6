"""What users write on the command line: the forms of values, and options that several commands have.

Nothing here asks a broker, or knows a command.

    settings                 the root command's options: addresses, TLS, form of the output
    consumer_group_settings  the options that set how a consumer group is served
    written                  the type of options that are written in a form of their own
    amounts                  durations and sizes
    places                   places in a partition: an offset, an end, a time
    keys                     keys of messages
    attributes               attributes of topics
    delays                   limits of topics for delayed messages
"""
