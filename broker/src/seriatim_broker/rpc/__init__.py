"""Everything that reaches a broker from outside. Rooms; each imports only those that come after it:

servicers    the services of a broker, as gRPC calls: checked, translated, answered
distributed  what a broker can do only together with others: publish, forward, find messages and staged data
streams      streams of clients: append, consume, read a range
links        links between two brokers, and listening sockets
calls        what all of these share: channels, addresses, limits
"""
