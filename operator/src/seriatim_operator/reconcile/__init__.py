"""Runs the passes over objects. Each pass observes, plans, applies and reports.

A changed object becomes a key in the work queue. The pass of this key reads the objects from the cache, and carries
out the plan that `plan` makes.

    cache                    newest manifests that the watches reported
    dispatch                 keys of the work queue for an object that changed
    queue                    one pass at a time for each key, four passes at once

    cluster                  a pass over one BrokerCluster
    observe                  what such a pass sees, from the cache or from the API itself
    known                    what passes over a cluster and over its topics share
    refusals                 writes that failed, so that a pass continues with the others
    rivals                   one operator for each cluster, although others may watch it
    secrets                  certificates as Secrets, and the operator's own certificate
    definitions              whether Kubernetes has this version's definitions of our kinds
    objects                  status, finalizer and Events of objects that users own
    uninstall                what must be true before the operator is removed

    topics                   Topics and ConsumerGroups of all clusters
    object_pass              common part of the passes over both kinds
    topic_pass               passes over Topics
    consumer_group_pass      passes over ConsumerGroups
    consumer_group_settings  settings as messages of the brokers, and back
    claims                   which objects claim what, and which claims are due
    asking                   calls to brokers about topics and consumer groups
    topic_mirror             what the brokers of a cluster sent about its topics
    departed                 deleted objects, until what they owned is deleted
    losses                   whether the coordinator has lost what is missing, before the operator makes it again
    unclaimed                topics that an operator made and that no object claims any more
"""
