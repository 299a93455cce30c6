"""A real Kubernetes of three nodes on one machine, built from its Go modules: what the end-to-end tests run on.

No image registry, no Docker and no virtual machine: each node is a containerd and a kubelet of its own, with its own
cgroup, network and disks. A test can let it die as a machine dies. `python -m tools.kubernetes up` makes the cluster.
How it is put together: docs/operating/kubernetes-on-one-machine.md.

    api             what tests hold: a cluster to install into, and nodes to strike
    lifecycle       steps of `up` and `down`
    layout          files, addresses and names of everything
    configs         flags and configuration files of all programs
    host            whether this machine can run the cluster, and Debian packages that it lacks
    errors          this machine can never run it, or something went wrong this time

    programs        Kubernetes' own programs, built into a cache
    base_image      a minimal Debian with Python
    images          archives that each node gets, in place of a registry
    pki             certificates and kubeconfigs
    control_plane   etcd, API server, controllers, scheduler, proxy and DNS, as host processes

    node            containerd and kubelet of one node: its death and its return
    cgroups         one cgroup for each node, so that all of its processes die at one instant
    private_mounts  one mount namespace for each node
    network         interfaces and routes
    disks           which disks should be made, offered, wiped; pure
    keeper          a process that does this, once a second

    dns             names of the cluster, for programs of the host
    kube            kubectl, as the administrator
    processes       host processes that outlive the command which started them
    running         commands with their end, and waiting for a state with a deadline
"""
