"""What is more than one request: parts of commands that are large enough for a module.

Each of these belongs to one or two commands, and knows none.

    range_output         `consume` without a group: messages from one place to another
    topic_end            the end that a topic had when `consume` began, and whether it was reached
    history_recorder     what `consume --history` records
    message_sources      where the messages of `produce` come from, and their pace
    retention_change     options about retention, and what a shorter retention would drop
    broadcast_consumers  finds, describes and deletes broadcast groups
"""
