"""What a broker can do only together with others. These protocols span brokers; the core decides each step of them.

publisher        decides a publication in one transaction, and has the masters of its partitions carry it out
staged_data      finds a staged batch or a manifest, on this broker's disk or on another one's
forwards         carries dead letters, replayed copies, resolutions, and delayed messages that are due
owner_elections  elects the owners of names whose host this broker is, with the coordinator and with masters
pending          asks servers up to where retention may drop messages, because nothing is delayed there any more
fired_reads      reads what was fired of a segment, in the logs of all later ones
master_appends   appends batches of brokers' own producers to a partition, wherever its master is
places           finds the places of messages, in this broker's segments and in those of others
"""
