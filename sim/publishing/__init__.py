"""Writers in the simulation: programs that publish, tasks that stage, publishers, what is staged, and their judge.

    environment  all that has to do with publications in one world
    programs     programs that publish: killed, run again, woken as zombies
    publisher    what a broker does for a publication, step by step
    staged       staged batches, and the coordinator's keys about publications
    judge        decisions, appends and answers against the rules below

A program opens its writer, has tasks stage rows for some partitions, and asks some broker to publish them. That broker
is the publisher. It does what `rpc.distributed.publisher` does, with the same decisions of the core, and with a
coordinator that loses requests and answers. Masters carry out publications, as everywhere.

Programs are killed, wake up as zombies, and run again, with other rows or with the same ones. Two programs use one
writer. The topic grows. An administrator deletes a writer. A client sends batches that only a master may write. Staged
data is away and comes back, is dropped by its own retention, or is lost for ever.

Staged batches are not in simulated segments, because the stage topic is a topic like any other. Here a store holds
them, and a read of a batch succeeds, or fails for now, or fails for ever.

    PUB         P1: a row is appended only for a manifest that is decided
    ONE         P2: one manifest for (writer, sequence)
    NEXT        P3: the next is decided when all of the one before is committed
    DONE        P4: ok follows from commits
    CUTS        P5: same numbers, cuts and bytes from every master
    KEPT-STAGE  P6: what is decided is not dropped
    FENCE       P7: once opened, nothing of an earlier opening is decided
    OWNER       nothing is decided for an owner while the writer is another one's
    SPREAD      all rows of a publication were spread over the same number of partitions
    REPEAT      the last publication is ok again, if its rows come again, however many partitions the topic has now
    WHOLE       P8: what is decided becomes complete, once and in order
"""
