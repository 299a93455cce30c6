"""The Kubernetes operator of Seriatim. Each pass observes, plans, applies and reports.

The modules here are the operator's process and its commands. What a pass does is in the packages, from the models of
the objects to the calls of the API.

    spec          models of the objects that users and the operator write into Kubernetes
    resources     builders of a cluster's children, from a model to a manifest
    plan          every decision, as pure functions
    status        reports and their conditions
    cluster       calls to the Kubernetes API and to the brokers
    reconcile     passes over the objects
    etcd          start of a member of the chart's etcd, and a view of all members
    plugin        the command `kubectl seriatim`

    commands      subcommands that the operator adds to `seriatim`
    running       `seriatim operator run`, with its settings, logs and signals
    handlers      process of the operator: cache, work queue, Lease; events become keys in the queue
    watching      kopf, which only watches, in a thread of its own
    settings      environment variables of the process
    logs          JSON on stderr, without the lines that come again and again
    metrics       figures for Prometheus: passes, work, conditions of objects
    probes        `/healthz` and `/metrics` over HTTP
    applying      `seriatim operator apply`, which applies the chart's BrokerCluster
    uninstalling  `seriatim operator before-uninstall`, which runs before Helm removes the operator
"""
