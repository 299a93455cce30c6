"""Decides what to do: pure functions from what is desired and observed to a list of actions.

`cluster`, `topics` and `consumer_groups` have a plan for each of the three. The other modules are parts of these
plans, or what they work on.

    observed                 the objects of a cluster as a plan sees them
    actions                  the steps that a plan may have, each with its reason

    cluster                  the next steps for one cluster; at most one of them takes something away
    members                  a Broker for each slot, a claim and a pod for each Broker
    rolling                  changes of template or image, one member at a time
    former                   images with which a missing pod is made, and pods whose replacement takes nothing away
    scaling                  removal of broker groups
    spread                   broker groups over machines, and which of them to move to other machines
    nodes                    which nodes Kubernetes may choose for a new broker
    cordon                   intents of broker groups, and when their members may be evicted
    loss                     lost disks: marked with a proof, and later given up
    certificates             death certificates for member runs that have ended
    absence                  members that are away without a fault
    external                 Services and addresses for clients outside
    names                    names of new disks

    topics                   steps for topics
    chains                   what the chains of topics say about copies, broker groups and brokers
    consumer_groups          steps for consumer groups
    consumer_group_settings  settings of a consumer group in the brokers' units
    dead_letters             the topic that takes a consumer group's messages after their last attempt
    claims                   which of several objects has a topic or consumer group that all of them name
"""
