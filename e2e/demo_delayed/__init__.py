"""`make demo-delayed`: messages are fired at their time, and called back, while brokers are killed.

What it shares with `make demo` is in `e2e.demo`, and what it shares with `make bench` in `e2e.lateness`.

    run        this demo, from the first message to the judgement
    fates      what happened to each message, and what is wrong with it; pure
    picture    how late each message was, in time
    settings   those of all demos, and how many messages are called back
"""
