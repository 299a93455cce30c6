"""The driver of the core: events in, effects out.

driver                takes events one at a time, and carries out the effects in the core's order
coordinator_requests  reads and writes at the coordinator for the core: few transactions, true outcomes
links                 one link for each pair of brokers that talk, and when another one is made
keyed_reads           keys of batches, and single messages, for key-ordered consumer groups
delayed_reads         rows of what is due next, and the bodies of volleys
retry_cache           messages on which consumers failed, in memory until their next attempt
traffic               counts by partition what this broker takes from producers
"""
