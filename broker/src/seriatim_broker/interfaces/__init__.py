"""What the runtime requires of a machine, as protocols; and the stored form of the core's values.

`adapters` and `rpc` implement the protocols on a real machine, `testing` on a simulated one.

    storage           the disk: writes in order, one ticket for each, reads
    coordinator       etcd's data model: keys with revisions, transactions, leases, watches
    link              connections between brokers, with a lane for control and one for replication
    bodies            what a broker reads in the bodies of batches
    clock             monotonic time, and the time of day

    forms             values of the core as MessagePack arrays, for disks and messages
    segment_records   members and segments of a chain as protobuf messages
    settings_records  settings of consumer groups as protobuf messages
    same_names        fields that a value and a message have under the same name, copied
"""
