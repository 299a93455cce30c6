"""Rules of the core about when a broker counts as silent, what a client hears of a silent master, and growing."""

from .rows import mutations

MUTATIONS = mutations("""
suspicion-waits [ASKED frozen-masters]: a question about a silent master is answered when the master was heard, or the
  next segment is open
@ core.switching.routes._is_looked_into
+ return False
watched-from-now [CALM nothing-fails]: a broker that is watched from now on counts as silent only from now on
@ core.state.broker.BrokerState.watch_peers
- link.watched_us = self.now.mono_us
+ link.watched_us = 0
sleep-is-no-silence [CALM frozen-masters]: a process that did not run takes no other broker for silent because of that
@ core.dispatch.links.beat
- asleep = bool(due_us) and
+ asleep = False and
grows-when-linked [GROWTH growth]: an open segment grows only into a broker group whose members hear each other
@ core.control.controller.plan_growth
- and not any(one.broker in cut_off for one in own)
+ and True
masters-by-turn [GROWTH growth]: when segments get more members, masters take turns
@ core.peers.candidates.next_master
- first, *others = members[turn:] + members[:turn]
+ first, *others = sorted(members, key=lambda member: member in segment.members)
""")
"""By name."""
