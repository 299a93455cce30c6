"""Rules of the core about empty segments that leave the record of a chain."""

from .rows import mutations

MUTATIONS = mutations("""
[chatty]
folds-any-sealed [I8 CORE]: only an empty segment is folded
@ core.values.chain.may_fold
- if segment.state is not SegmentState.SEALED or segment.sealed_len != 0:
+ if segment.state is not SegmentState.SEALED:
@ core.values.chain._check_around
+ pass
folds-unsettled [I8 CORE]: only a settled segment is folded
@ core.values.chain.may_fold
- if segment.state is not SegmentState.SEALED or segment.sealed_len != 0:
+ if segment.state is not SegmentState.UNSETTLED and (segment.state is not SegmentState.SEALED or segment.sealed_len):
@ core.values.chain._check_around
+ pass
folds-with-tail [COPY I12 torn-and-chatty]: a segment whose members keep the tail of the one before stays
@ core.values.chain.may_fold
- if before is not None and before.tail_from is not None and not before.has_two_copies:
+ if False:
folds-with-table [I9 TABLE I13]: a segment before an incomplete one stays
@ core.values.chain.may_fold
- return (segment.incomplete_table and before is not None) or not any(marks_behind)
+ return True
stays-in-folded [I13]: a consumer group whose cursor is in a folded segment continues
@ core.consumers.groups.serving._pass_over_folded
+ pass
""")
"""By name."""
