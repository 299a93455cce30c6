"""What brokers, clients, operator and Spark share: identifiers, headers of batches, errors, what each agrees on.

It imports nothing, because the broker's core uses modules of it and does no I/O. Rooms:

    wire      frames on TCP connections
    network   names, certificates, gRPC's options, time on the way
    terminal  what commands print and ask
    v1        the generated protobuf messages

Outside the rooms:

    ids             identifiers that cross processes, and the arithmetic of offsets
    errors          the error catalogue
    status          the catalogue as gRPC statuses, and back
    protocol        the version that each side says in its hello
    batch           the header of a batch, 192 bytes on the wire and on disk
    bodies          the form of a body, and the one function that reads what another process wrote
    record_batches  the metadata of a body
    publications    the manifest of a publication, and its digest
    dead_letters    names, ids and headers of dead letters
    exclusive       producer ids of exclusive producers
    delayed         producer ids of delayed messages that brokers store again
    key_names       names of keys among brokers, and their notation for humans
    attributes      legal attributes of topics
    delay_limits    limits of a topic for delayed messages
    retry           legal retry policies of consumer groups
    spreading       which consumer of an exclusive consumer group reads which partition
    lag             the lag of a consumer group
    reported_gaps   the offsets that a reader knows to be gone, so that none is reported twice
    troubles        what a broker shows at `/readyz` when an administrator must act
    log_repeats     drops lines of a log that come again
    imports         keeps a library from importing another one
"""
