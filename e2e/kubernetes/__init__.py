"""The product on a real Kubernetes: `make e2e`. Installed by Helm, struck, changed and scaled under checked traffic.

    __main__    the command line; runs the suite again inside the cluster's DNS, and strikes nodes from outside
    images      the images of this checkout, on all nodes
    place       one namespace, and requests to the API
    release     the chart in that namespace
    traffic     producer and reader of a case, their judgement, and the gap between acknowledgements
    machines    nodes and containers, struck and healed
    stage       the means of a case
    cases       the cases, in the order in which they run
    run         the suite: health before and after, evidence after a failure, and clearing up
    report      figures, the table, JSON, the closing line

The traffic is that of the fault suite (`e2e.faults.client`) and its judge is `seriatim.history`, as everywhere.
"""
