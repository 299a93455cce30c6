"""Builds the child objects of a cluster: one pure function for each kind, from a model to a manifest.

cluster_children  all builders for one cluster as one object, from which plans get children
names             names, labels, ports and paths that all children use
ownership         to which cluster an object belongs

pod               a broker's pod
volume_claim      the claim for its disk
config            the brokers' settings file, and the hash that shows whether a broker has the wanted template
services          Services for brokers' names, and for clients inside and outside
policies          NetworkPolicy of the brokers, disruption budgets of the broker groups
secrets           certificate files as Secrets, and back
children          objects of our own kinds, and the ServiceAccount
"""
