"""Frames on TCP connections: links between brokers, and streams of clients.

No module here uses gRPC or protobuf's own code.

    frames             the frames of the hot path as bytes, without protobuf's own code
    frame_reader       finds the frames in the bytes that a connection received
    framed_connection  a connection that carries frames, on the event loop and without tasks
    stream_frames      the kinds of frames on a connection that carries one stream of a client
"""
