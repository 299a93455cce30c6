"""`make demo-orders`: consumers work on messages by key, while they, brokers and two aircraft fail.

What it shares with `make demo` is in `e2e.demo`.

    orders             this demo, from the first event to the replay of dead letters
    settings           those of all demos, and PLANT
    planning           which faults come, and which aircraft are poison; pure
    fates              how each attempt at a message goes; pure

    crew               processes with consumers: started, killed, frozen, replaced
    consumer           such a process, with several consumers
    store              a SQLite file to which all of them write, and which keeps order by tokens
    delivery_attempts  a record of all attempts
    troubles           one aircraft is parked and released, another one dead-lettered and replayed

    judging            judgement of histories, store and attempts; pure
    picture            what each consumer finished, in time
"""
