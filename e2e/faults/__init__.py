"""The fault suite on real processes: `make faults`.

Brokers, coordinator and clients are processes of this machine. The suite does each fault to them under load, judges the
histories that the clients wrote, and prints a table. `docs/internals/faults.md` says what each fault does, and how to
replay a run.

    fault       what a fault is, and the `Scene` on which it acts
    processes, network, disks, damage, loss, coordinator, clocks, certificates, switching, balance, broker_groups
                the faults; `admins` are calls that some of them make
    catalogue   all faults, and the choice for a quick run
    schedule    which fault comes when, with which load: from the seed alone
    client      a producer's or a reader's process; `load` starts these processes and tells them what to do
    crew        consumers by key beside the load, in processes of `worker`
    publishing  publications beside the load, by a program (`publisher`)
    features    what people use on a topic of its own beside the load
    clusters    the clusters on which cases run, with `shims` below their processes; `trio` is an etcd of three members,
                and `namespaces` is a network on which packets are lost
    settings    what the environment chose
    case        one fault, from a healthy cluster to the judgement
    run         the cases of a schedule, one after another
    report      table, JSON, and whether the run fails
"""
