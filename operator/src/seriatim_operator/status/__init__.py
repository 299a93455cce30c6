"""Makes the reports: statuses and their conditions, each with a reason from a closed list.

cluster          statuses of a cluster, its broker groups and its brokers
topics           the status of a topic
consumer_groups  the status of a consumer group
conditions       conditions from a list of facts; one changes only when its fact changed
reasons          closed lists of reasons, with what each means
remedies         what an administrator does about each reason
disk_remedies    more about a disk that a broker refuses
"""
