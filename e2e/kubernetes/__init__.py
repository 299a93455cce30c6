"""The product on a real Kubernetes: `make e2e`. Helm installs it; faults, changes and scaling follow under traffic.

The traffic is that of the fault suite (`e2e.faults.traffic.client`). `seriatim.history` judges it, as in all suites.
The command line (`__main__`) runs the suite again with the cluster's DNS, and strikes nodes from outside.

    run          the suite: health before and after each case, evidence after a failure, and clearing up
    cases        the cases, in the order in which they run
    stage        all that a case may use
    images       the images of this checkout, on all nodes
    place        one namespace, and requests to the API
    release      the chart in that namespace

    traffic      producer and reader of a case, their judgement, and the gap between acknowledgements
    delayed      delayed messages beside that traffic
    outsider     a client outside of Kubernetes
    machines     nodes and containers: kills them, freezes them, and brings them back
    coordinator  etcd of the chart, and how to replace a member of it
    balancers    a provider of load balancers

    sight        what users and Prometheus see at one moment, as text
    evidence     objects, events and logs that are kept of a failed case
    report       figures, the table, JSON, the last line
    reading      types the commands of the Kubernetes pages: `make e2e-pages`
"""
