"""Control: what the controller asks of a broker, and pure functions for the controller, which is in the runtime.

orders      what the controller asks for in a partition; this broker does it, or passes it on
drain       open segments and copies leave a broker group that is cordoned or drained
retention   messages that are too old, or beyond the size limit, are dropped
holdings    what a member says of its copies before another member is stopped

controller  which broker groups to leave, what to heal, which copies to release
balance     which open segments should move, by the traffic that masters measured
obstacles   why a broker group that is to be left is not empty yet
restarts    whether a member may be stopped now
rebuild     the records that a coordinator should have after it lost decisions
"""
