"""Control: what the controller asks of a broker, and pure functions for the controller, which is in the runtime.

leaving      open segments and copies leave a broker group that is cordoned or drained
retention    messages that are too old, or beyond the size limit, are dropped
standing     a member says what it holds of segments, because a person wants to stop another member
controller, balance, obstacles, restarting, rebuild   the decisions of the controller
"""
