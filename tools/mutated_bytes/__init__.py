"""Gives mutated inputs to every decoder of bytes that another process wrote.

    python -m tools.mutated_bytes                      a million inputs, in some minutes
    python -m tools.mutated_bytes --inputs 20000       fewer
    python -m tools.mutated_bytes --only body          the decoders with this in their names
    python -m tools.mutated_bytes --only manifests --seed 7 --from 4711 --inputs 1      one input again

Each decoder runs in a process of its own (`child`), with a limit of memory. An input is red if the process ends by a
signal, takes more memory than `MEMORY_BYTES_MAX` or more of a processor than `INPUT_S_MAX`, or raises what is not among
the decoder's typed errors. The same seed gives the same inputs, and each input depends only on its number.

A test gives a few inputs to all decoders, in one process, because most of the time of a short run are imports.

    draws      how inputs are made: bytes that are mutated, messages of protobuf with odd fields
    decoders   the decoders, each with its inputs and its typed errors
    child      decodes inputs, in its own process
    planted    decoders that do what none may do, to see that it is seen
"""
