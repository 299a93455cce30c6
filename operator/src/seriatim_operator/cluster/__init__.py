"""Talks to the Kubernetes API and to the brokers, through one class for each.

kube          every call of the operator to the Kubernetes API
kinds         the kinds of objects that it reads or writes, with their paths in the API
lease         one operator acts at a time; its epoch goes into each call to brokers
brokers       calls to Admin and Operations of any broker of a cluster
pki           authorities and certificates of clusters
mounting      why a pod cannot start with its volumes, from a kubelet's Events
readiness     why a broker is not ready, from its admin port

connection    how a command finds the API: a kubeconfig, or the account of its pod
port_forward  a local port that leads to a port of a pod
"""
