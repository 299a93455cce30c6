"""The command `seriatim`: a user works with a cluster from a terminal.

It uses only the client's public names. It finds commands of other packages (`broker`, `coordinator`, `standalone`,
`cluster`) through the entry-point group `seriatim.commands`, and imports nothing of these packages.

    _root                the root command, which loads the others; errors as a line and an exit status
    _options             what users write: forms of values, and options of several commands
    _execution           how a command runs: event loop, client, questions to the user
    _operations          parts of commands that are more than one request
    _rendering           what users and programs see: lines, tables, JSON

    produce              sends lines or generated messages
    consume              prints a topic
    topic                create, list, alter, delete
    group                consumer groups: list, create, rewind, pause, delete
    consumer_group_keys  `group parked`, `release`, and `skip` with a key
    dead_letter          list, replay and drop dead letters
    delayed              list, count and cancel delayed messages
    owner                owners of names: list, show, release
    writer               writers of publications
    chain                draws chains, declares gaps
    balance              load of the masters, and moves of open segments
    broker_group         cordon, drain, activate, remove
    member               list, check a restart, declare dead, remove
    scrub                brokers read their disks
    check                the history checker over files
"""

from seriatim.cli._root import main

__all__ = ["main"]
