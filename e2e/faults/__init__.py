"""The fault suite on real processes: `make faults`.

Brokers, coordinator and clients are processes of this machine. The suite does each fault to them under load, judges the
histories that the clients wrote, and prints a table. `docs/internals/faults.md` says what each fault does, and how to
replay a run.

    settings   what the environment chose
    catalogue  all faults, and the choice for a quick run
    schedule   which fault comes when, with which load: from the seed alone
    case       one fault, from a healthy cluster to the judgement
    run        the cases of a schedule, one after another
    report     table, JSON, and whether the run fails

Rooms:

    kinds      the faults, and what a fault is
    traffic    what runs beside them
    systems    clusters, networks, libraries below the brokers, and admin calls
"""
