"""A real Kubernetes of three nodes on one machine, built from its Go modules: what the end-to-end tests run on.

No image registry, no Docker and no virtual machine: each node is a containerd and a kubelet of its own, with its own
cgroup, network and disks, and dies as a machine does when a test wants it to. `python -m tools.kubernetes up` makes it,
`tools.kubernetes.api.Cluster` is what tests hold. How it is put together: docs/operating/kubernetes-on-one-machine.md.
"""
