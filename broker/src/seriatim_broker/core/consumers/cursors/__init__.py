"""How far a consumer group is, whatever its mode.

consumer_group     find the state of a consumer group, send its consumers something, forget it
control_records    control records go from the server to the other members
delivery_attempts  how often this server gave a message to a consumer
gap_reports        consumers are told what retention dropped, or what was declared lost
crossing           the cursor moves to the next segment
"""
