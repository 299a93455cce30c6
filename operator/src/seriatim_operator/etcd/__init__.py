"""Starts a member of the chart's etcd: on its log, as a member of a new cluster, or in place of a lost disk."""
