"""The controller: what one elected broker does for the whole cluster. No switch needs it.

controller               runs the duties below while this broker is elected
caretaker                admits members, switches away from lost broker groups, has copies made
heal_pace                when the caretaker scans all chains for what lacks a copy
topics                   makes topics with all their partitions, lets them grow, deletes them
consumer_groups          consumer groups that are made before a consumer joins; deletes unused ones
consumer_group_growth    new partitions of a topic get the cursors of its consumer groups
broker_groups            intent, weight and content of broker groups, as administrators and the operator change them
balancer                 measures the load, and moves open segments
drainer                  open segments, then copies, leave broker groups that are cordoned or drained
unfinished_publications  finishes a decided publication whose publisher has not done it within 2 s
cleanup                  removes records that nothing can need any more
expiry                   some time after a deletion, something of bounded size replaces its records
"""
