"""Consumer groups of all modes: who is here, where the cursor is, and what continues when something has come.

streams            what a consumer sends on its stream
subscriptions      consumers come and go
sessions           a consumer that sends no heartbeats gives way to another one
questions          administrators and consumers ask where the cursor is and which broker serves it
serving            where the cursor of a consumer group is, and whether this broker serves it there
beginning          this broker begins to serve the consumer group, at what its disk knows of it
without_consumers  consumer groups without consumers leave empty segments, and send dead letters
record_changes     the chain record changed: stop here what another broker serves now
operations         an administrator rewinds, skips, pauses, resumes or configures the consumer group
cursor_notes       the server notes in the cursor that consumers are here, and the next term
progress           all members have a control record, or something else came: the consumer group continues
eligibility        a member joins those that may serve a segment
figures            figures for the metrics
"""
