"""Bugs in shared and at-most-once groups, and where partitions are spread over consumers."""

from .rows import mutations

MUTATIONS = mutations("""
[O1 O2 S1 S2 S3 I13 CORE modes]
acknowledged-first: at most once: a message is given when every eligible member has its acknowledgement
@ core.consumers.keyed.grants._acknowledge_first
  keyed = served.keyed
+ unsent.is_durable = True
@ core.consumers.exclusive.delivery._is_acknowledged_first
- return False
+ return True
at-most-once-doubt [modes-blind]: at most once: what may have been given, and no member knows, does not come again
@ core.consumers.groups.beginning._skip_what_may_have_been_given
+ pass
yields-when-done [I9 yields]: another consumer reads a partition when all that the one before was given is acknowledged
@ core.consumers.exclusive.reassignment._is_done
+ return True
only-the-asked [I9 CORE yields]: only the answer to the last question to yield counts
@ core.consumers.exclusive.reassignment._is_answer
- yielding.number == event.number > 0
+ yielding.number > 0
""")
"""By name."""
