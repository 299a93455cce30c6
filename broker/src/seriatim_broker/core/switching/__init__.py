"""Switching: from one segment to the next.

These modules run on the switcher:

    switch       the steps of a switch, and what begins one
    planned      all members are alive: the target rehearses, and the master comes to rest
    sealing      fences the members, waits for their answers, and decides
    lengths      derives from the answers what is sealed: length, producer table and uncertain tail
    opening      asks the next broker group to prepare; one transaction seals and opens
    tries        begins a switch again, pauses it, ends it
    switch_attempts  the ids under which members prepare

These modules run on the members that the switcher asks, and on the brokers that clients ask:

    fencing      a member stops taking batches, and says what it has
    preparing    a member writes everything that it would need to open a segment
    idle_blocks  sends the tables of idle producers to the next members before a switch
    routes       tells clients where to append; handles their complaints and suspicions
"""
