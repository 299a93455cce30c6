"""Rules of the core about copies of sealed segments: where they come from, and which member lists them."""

from .rows import mutations

MUTATIONS = mutations("""
[I13 servers-lost]
own-tail-overlooked: a member that copies uses the tail that it keeps itself
@ core.copies.copying._took_own_tail
+ return False
server-unmissed: a member that needs a server that is gone asks for another one
@ core.copies.copying._be_listed
- right.want_another(broker, partition, segment)
+ pass
@ core.copies.producer_tables.want_before
- right.want_another(broker, partition, before)
+ pass
amends-together [LIMIT I13 thousands]: changes of sealed segments that wait go together, one transaction at a time
@ core.state.partition.Partition.may_amend
+ return not self.write_wait_us(broker)
@ core.copies.copying.list_whole
  changes: dict[int, Chain] = {}
+ written = [each for owner, _, each in partition.writes.values() if owner is WriteOwner.COPY]
+ under_way = {segment.no for each in written for segment in each.changes_since(chain).changed}
- segment = chain.segment(no) if may_join(changes, no, partition.pace.segments_max) else None
+ segment = chain.segment(no) if no not in under_way else None
- if changes:
-     partition.write_chain(broker, WriteOwner.COPY, merged(chain, changes))
+ for changed in changes.values():
+     partition.write_chain(broker, WriteOwner.COPY, changed)
""")
"""By name."""
