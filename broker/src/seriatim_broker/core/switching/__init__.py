"""Switching: from one segment to the next.

On the broker that runs a switch:

    switch       the steps, and how a switch comes about
    planned      all members are alive: the target rehearses, the master comes to rest
    sealing      members are fenced, and what they answer is decided on
    lengths      what is sealed: length, table and tail, from the answers
    opening      the next broker group prepares; one transaction seals and opens
    tries        a switch begins again, pauses, ends
    attempts     the ids under which members prepare

On the members that it asks, and on the brokers that clients ask:

    fencing      a member refuses to go on, and says what it has
    preparing    a member writes what it would need to open a segment
    idle_blocks  producers that are idle travel ahead of the switch
    routes       where to append; complaints and suspicions
"""
