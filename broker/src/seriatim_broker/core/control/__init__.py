"""Control: what the controller asks a broker for, and pure functions for the controller, which is in the runtime.

leaving      open segments and copies leave a broker group that is cordoned or drained
retention    what is too old or too much is dropped
standing     what a member holds of segments, for the broker that wants to stop another one
controller, balance, obstacles, restarting, rebuild   what the controller decides with
"""
