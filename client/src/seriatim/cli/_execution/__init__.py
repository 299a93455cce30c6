"""How a command runs: its event loop, its client, its question to the user.

Each command uses this, and it knows no command.

    coroutines    runs a command's coroutine, and ends it at an interrupt; shows a live line
    connection    a client of the cluster that the root command's options name
    confirmation  asks before a command changes something that cannot be taken back
"""
