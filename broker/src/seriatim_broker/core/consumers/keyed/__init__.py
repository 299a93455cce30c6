"""Consumer groups in which order counts within a key: all consumers are given messages, key by key.

The keys, what waits of them and what is granted are in `state.keyed`.

    grants            messages go to consumers key by key
    outcomes          what consumers do with such messages: acknowledge, fail, extend, leave, be silent
    earlier_messages  messages of a key that wait in an earlier segment come from a member that has it
    waiting_keys      administrators list the keys that wait, release them, and pass over their first messages
    dead_letters      after its last attempt, the first message of a key goes to the dead-letter topic
    handoff           the state of keys moves to the server of the next segment
"""
