"""Everything that touches gRPC: channels, streams and unary calls. No gRPC exception leaves this package.

What goes over the streams, and when, is decided by the pure cores; here are connections, deadlines and frames.
"""

from seriatim._transport.append import AppendLink, AppendLinks
from seriatim._transport.channels import Channels
from seriatim._transport.consume import ConsumeLink
from seriatim._transport.unary import Caller

__all__ = ["AppendLink", "AppendLinks", "Caller", "Channels", "ConsumeLink"]
