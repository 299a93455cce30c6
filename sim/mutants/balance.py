"""Rules of moving an open segment to a chosen place, removed one at a time: balanced worlds must find each of them."""

from .rows import mutations

MUTATIONS = mutations("""
[balance brokers 150]
rest-is-enough: a planned switch fences, even if the master rests
@ core.switching.fencing.fence_and_answer
- log.fence(broker)
+ if partition.quiescence is not None:
+     return fence_answer(broker, log, message)
+ log.fence(broker)
chosen-alone: a chosen broker group takes the segment with all its members
@ core.switching.switch.on_prepare_answer
  switch = partition.switch
+ if switch is not None and switch.target_broker_group and switch.opening.members[:1] == (sender,):
+     switch.opening.members = switch.opening.members[:1]
""")
"""By name."""
