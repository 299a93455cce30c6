"""Bodies of batches: a client encodes messages into them, and decodes them.

arrow      writes and reads bodies with Arrow, and checks tables that users send
templates  encodes a batch of one message without Arrow, into the same bytes
"""
