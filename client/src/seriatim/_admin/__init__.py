"""Administration: what `Client.admin` gives. Requests go to brokers, and answers come back as plain values.

Each base class of `Admin` has the calls about one subject. `Admin` itself has the others.

    admin             `Admin`: topics, chains, members; its base classes are in the other modules
    broker_groups     broker groups: intents, what they hold, whether a broker may be stopped
    group_operations  the cursors of consumer groups: rewind, skip, pause, resume
    waiting_keys      keys of consumer groups that wait: list, release, pass over their first messages
    dead_letters      dead letters: list, replay, drop
    delayed           delayed messages that wait: list, count
    owners            names that one program at a time has: list, describe, release
    writers           writers: list, describe, delete
    descriptions      the plain values that describe the cluster
"""
