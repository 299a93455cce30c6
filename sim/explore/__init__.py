"""Exhaustive exploration of a small world: the real cores of brokers and producer, breadth first, all interleavings.

    model       how the small world begins, which actions a state has, and what each of them does
    state       one state, as numbers of tables
    steps       tables of all steps, each taken once
    cores       broker cores as values that can be compared
    reductions  states that differ only in what can never matter again become one
    checks      what must hold in each state and at each step
    search      breadth-first search, and the story of what it finds
    mutants     rules whose removal the search finds, each with its narrow world

The world has two broker groups of two brokers, one partition, one producer, and a budget for each kind of misfortune.
The search begins in the state in which the partition was just created and everything is quiet. In every state it takes
every possible action. It visits equal states once. Because it goes breadth first, it prints a violation with a shortest
trace.

An action is one of these:

* The first message of a lane of a link arrives. Control and data have lanes of their own, each first in, first out.
* A disk makes its pending writes durable and says so.
* The coordinator carries out and answers the oldest request of a broker. Or it does not report a write's outcome, and
  carries the write out later or never. The same holds for a write of a broker that crashes meanwhile.
* The earliest timer of a broker or of the producer fires.
* A client complains to a broker about the open segment.
* A broker crashes and keeps a prefix of its pending writes, or starts again.
* A live end notices that its peer has crashed, or a link comes up.
* The producer's batch arrives, a reply to it arrives, its stream ends, or its question reaches one of the brokers.

Why it is quick: a broker's step depends only on its core and the event. So cores, disks, messages and chains are
numbered by value, and a state is a tuple of numbers. A step is computed once, and looked up from then on.

What is abstracted, and what it loses
-------------------------------------

*Time.* Each broker has a clock of its own that stands still until one of its timers fires, and then shows that timer's
time. Order and durability must not depend on clocks, so any drift is allowed: this adds behaviours. Instants are
compared relative to the broker's clock, and all instants more than a second ago count as equally old. All durations of
`CONFIG` are shorter, so no comparison can tell the difference. Pauses do not grow, and no broker group is passed over
because it flaps (`CONFIG`). This loses the growth, which only says when something is tried again. Wall clocks stand
still, so all times in headers and records are equal. Timers that fire at the same time do so in another order than in
production. A timer that is set twice for the same time fires once. Timers are hints: a core that wakes looks at its own
deadlines.

*Heartbeats* are neither timed nor delivered. They only serve to find silent peers (here a complaint or a crash does
that) and to keep the serving right. There are no consumers, so I2, I3, I8, I9 and I11 are not explored. One part of
them is: the sealed log must hold each message once, in the producer's order.

*What only counts* is left out of the comparison: times of the last heartbeat and of the beginning of a switch, and
reasons for notes. Write tokens count from the last durable one. Serials stay, because ids are made of them. Two states
that differ only in ids are told apart, which costs states and hides nothing. (Timers take no serials here, so the order
in which they were set does not show in ids.)

*Disks* make all pending writes durable at once; a crash keeps any prefix. A report for a part of them is not explored.

*The coordinator* carries out and answers in one step, except with a time-out. This loses answers that come late. A
death certificate is written at the moment in which a broker asks for it and is told that it exists. A broker could not
tell whether it was there earlier. When the member run has ended, both answers are explored.

*Links* between live brokers do not break. Messages of a crashed broker still arrive until the other end notices.

*Old news.* A chain record that its receiver knows already arrives at once, because it changes nothing and no broker
answers it. This loses that the record arrives after a newer one, and is answered with that (`old_news` explores it).

*Narrow worlds* (`__main__.WORLDS`, `mutants`) go deep and lose what their limits forbid. In most, a write is durable at
once, and only some brokers crash or hear complaints. Some begin with a prelude: actions that are taken first, and
alone. With the default of `apart`, all brokers notice a crash together, and a broker that starts is linked with all
others at once.

*States* are remembered by a 64-bit hash: with a million states, the chance that one was missed is below 10^-7.

How there are fewer states, without losing any behaviour
---------------------------------------------------------

`reductions` takes out of each state what can never matter again. States that differ in nothing else become one. The
rules depend on what the cores do, and each rule says on what:

* *Answers that no core waits for* change nothing, whenever they arrive. An id of a switch, of a switch attempt or of a
  request is never used again, and a log that was fenced or sealed never takes batches again.
* *A lost race* stays lost, because the revision only grows.
* If *no timer* may fire any more, clocks stand still, and no core looks at what is set for later.
* *A producer that was notified of everything*, or to which nothing can happen any more, sends nothing more.

No order of actions is left out, so a trace is a shortest one.

The tests would find a wrong rule. They explore worlds with and without the rules, and reduce what was reached without
them. Then they compare: the states, the outcomes in which nothing more can happen, and the mutants found are the same.

What was tried and left out: to explore only one broker's actions if all others may wait (a persistent set, found by
exploring the others without it). Such a broker was found in about half of the states. It saved 3 % of the states of
`complaint` at three times the work. Brokers need too many steps until they cannot reach each other, and before that
the search has taken all orders. Ids in order of appearance would save 2 %.
"""
