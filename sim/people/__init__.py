"""The administrators of a world, who change consumer groups while everything else goes wrong.

    operations   they rewind, skip, pause and resume consumer groups, and give them another mode
    parked_keys  they look at keys that wait, release them, and skip messages

Administrators ask brokers as clients do, and the judge knows what they asked for.
"""
