"""The services of a broker, as gRPC calls: checked and translated here, done by the core, runtime or `distributed`.

admin                      administration: any broker answers, or passes a call on to the broker that must do it
topic_admin                topics are made, changed, deleted, listed and watched
operations                 broker groups, for administrators and the operator
balancing                  the load, and moves that would even it out
consumer_group_admin       consumer groups are made, described and deleted
consumer_group_settings    their settings, checked
consumer_group_operations  rewind, skip, pause and resume, and plans of what they would do
consumer_group_targets     the place of a target (earliest, latest, an offset or a time) in each partition
consumer_group_keys        waiting keys are listed, released and passed over
dead_letters               dead letters are replayed and dropped; forwarded batches come in
delayed                    delayed messages are cancelled and listed
owners                     programs become the owners of names, and owners are listed and released
publications               writers and publications
ranges                     offsets, plans and reads of ranges
routing                    where to append and where to consume
rebuild_reports            what a broker knows, for the rebuild of a coordinator that lost records
"""
