"""Where the time of one message goes: stamps at named functions of the client and of real broker processes.

run      `make bench-timeline`: one message after another to a new cluster
broker   a real broker that reads the clock at the stamped functions
stamps   at which functions the clock is read, and how
hops     timeline of each message, and medians over all of them
picture  a bar for each hop
"""
