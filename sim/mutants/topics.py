"""Rules about deleted topics and consumer groups, removed one at a time: worlds that make them again must find each."""

from .rows import mutations

MUTATIONS = mutations("""
[GONE topics-again brokers 100]
deleted-unanswered: a request that waits for a deleted topic is answered
@ core.dispatch.deleted_topics.answer_all
+ pass
deleted-kept: brokers drop what they store of a deleted topic
@ core.state.outbox.Outbox.write
- self.writes.append(write)
+ if type(write).__name__ != "DropPartition":
+     self.writes.append(write)
expires-without-floor [EPOCH I1 I2 I8 I11 groups-again runtime]: the removal of a deleted cursor raises the floor of
  group epochs
@ runtime.controller.expiry.Expiry._remove_some_cursors
- raised = floor.above([record for _, record in part])
+ raised = floor
first-reads [I1 I2 I9 I11 groups-again]: if a consumer group had no consumers, its server reads the cursor again
@ core.consumers.groups.subscriptions.join
  if is_first:
+     activation.activate(served, consumer)
+     return
+ if False:
cursors-follow-growth [I1 topics-grow runtime]: the groups of a topic have cursors on new partitions before these
  belong to it
@ runtime.controller.consumer_group_growth.give_cursors
+ pass
expires-without-range [GONE I13 runtime]: a removed tombstone leaves its partition id in the ranges of deleted
  partitions
@ core.values.deleted.DeletedPartitions.with_ids
+ return self
""")
"""By name."""
