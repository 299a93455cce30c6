"""The judge: it sees every write, transaction, reply and delivery, and says which promise was broken.

It knows more than any broker or client: what is on each disk (also on those that were lost since), and the place of
every batch that was ever written. `Judge` passes each observation to the rules; all rules share one record, `Seen`. I1
to I14 are the protocol's invariants. Where each rule is:

    one_log          I5
    sealed_lengths   I6, KEPT
    transitions      I7, TWICE, CERT; folds (I8, COPY)
    two_copies       I12
    copies           COPY, LEAVE, GATE
    serving          I14, SERVER
    append_time      TIME
    producer_tables  TABLE, GAP
    outcomes         I1, I10, RT, PLACE, GONE
    order            I2
    deliveries       I9, I3, I1 of what consumers skip
    cursors          I8, I11
    operations       ONCE, DONE, VOID, PAUSE
    gaps             I1 of segments that are lost
    retention        RETAIN
    full_disks       FULL

Who else calls `Judge.fail`: the world for I13 (everything drains in time), each watched core for CORE, GONE and ALARM
(a broker that knows that the coordinator has lost decisions says so and changes nothing), and the world of whole
brokers for TWO (of two processes with one directory, one ends).
"""

from .cursors import PERSON
from .disks import holds, own_tail
from .judge import Judge
from .losses import Place
from .views import messages_of

__all__ = ["PERSON", "Judge", "Place", "holds", "messages_of", "own_tail"]
