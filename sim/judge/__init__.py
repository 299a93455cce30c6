"""The judge: it sees every write, transaction, reply and delivery, and says which promise was broken.

It knows more than any broker or client: what is on each disk (also on those that were lost since), and the place of
every batch that was ever written. `Judge` passes each observation to the rules; all rules share one record, `Seen`. I1
to I14 are the protocol's invariants. Where each rule is:

    one_log          I5
    sealed_lengths   I6, KEPT
    transitions      I7, TWICE, CERT; folds (I8, COPY)
    two_copies       I12
    copies           COPY, LEAVE, GATE
    servers          I14, SERVER
    append_time      TIME
    producer_tables  TABLE, GAP
    outcomes         I1, I10, RT, PLACE, GONE
    order            I2
    deliveries       I9, I3, I1 of what consumers skip
    cursors          I8, I11, PAUSE
    operations       ONCE, DONE, VOID, PAUSE
    gaps             I1 of segments that are lost
    retention        RETAIN
    full_disks       FULL
    suspicions       ASKED
    calm             CALM
    growth           GROWTH
    keyed            K1 to K6, J2, J3
    ledgers          J1, J2, J5
    parked           J2
    dead_letters     J4
    delayed          D1 to D5
    modes            S1 to S3, O1, O2
    told_once        TOLD

What the rules stand on:

    judge            passes each observation to the rules
    rules            all of them
    seen             the record that they share
    views            what the judge knows of one message, and of one consumer group
    disks            what a disk has of a segment
    losses           what may be missing: what was only in memory, and declared gaps
    lost_tables      producer tables that a declared loss took
    chain_records    what changed in a chain
    excuses          what is forgiven
    watched_core     shows the judge each step of a core

This room has more files than any other, because a file for each rule makes a rule easy to find and to read alone.

Other modules call `Judge.fail` for what only they see:

        world, condition         I13 (everything drains in time)
        watched_core             GONE, ALARM (a broker that knows that the coordinator lost decisions changes nothing)
        cores.coordinator        LIMIT, TWICE
        whole.cluster            ALARM, TWO (of two processes with one directory, one ends)
        whole.brokers            I14 (a member run on an older copy of a disk)
        whole.coordinator        EPOCH, OPERATOR, I7 (pages of a chain record)
        whole.disks              DISK
        whole.rebuilds           ALARM (such a broker says so), TWICE, I13
        whole.remade_topics      GONE
        programs                 CORE, GONE, I2
        programs.range_readers   RANGE
        publishing               all rules of publications
"""

from .cursors import PERSON
from .disks import holds, own_tail
from .judge import Judge
from .losses import Place
from .views import messages_of

__all__ = ["PERSON", "Judge", "Place", "holds", "messages_of", "own_tail"]
