"""Clusters of whole brokers: the production core and runtime, on fakes of the disk, the network and the coordinator."""
