"""Bodies of batches: a client encodes messages into them, and decodes them.

`seriatim_api.bodies` says which columns a body has, and `seriatim_api.batch` what is in the header of a batch.

    arrow      writes and reads bodies with Arrow, and checks tables that users send
    templates  encodes a batch of one message without Arrow, into the same bytes
"""
