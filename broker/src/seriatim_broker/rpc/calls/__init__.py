"""What all calls between processes share.

services           what all servicers of one broker share, and helpers that each of them uses
outbound           calls to another broker on behalf of a client: to the controller, a server, or a master
command_channel    a channel from a command to one broker, for a few calls
transport          connections to other brokers: in plain text, or with TLS
addresses          addresses of brokers in answers, which depend on the port over which a client asked
limits             limits that several servicers share, each with its reason
broken_assertions  an assertion that breaks in a served call goes to the event loop's exception handler
"""
