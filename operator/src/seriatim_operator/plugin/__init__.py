"""`kubectl seriatim`: shows a cluster, its plan and its chains, drains broker groups, and examines what is wrong.

All pictures and checks use one `Look`. The checks make findings, and `doctor` prints them.

    main                the command and its subcommands
    errors              the error that ends it with a sentence
    look                one reading of all objects of a cluster
    live                way to the brokers of a cluster from outside of Kubernetes
    pictures            cluster and plan, drawn for a terminal
    chains              segments of a topic, drawn
    draining            drain of a broker group: its checks, the state to write, its progress

    doctor              all checks on one look
    findings            what a check found, how bad it is, and what to do
    checks              Kubernetes, nodes, operator, etcd, topics, consumer groups
    member_checks       brokers: pods, disks, images, protocol versions
    certificate_checks  certificates: whether they can be read, when they end, and whether they trust each other
    condition_checks    conditions that are not as they should be
    former_disks        claims without a Broker: which of them are proved to be former disks
    health              `/readyz` of each broker
    without_objects     topics and consumer groups of the brokers that have no Kubernetes object
"""
