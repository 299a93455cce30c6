"""What developers and continuous integration run on this repository: checks, counts, generated files, test servers.

The folders with a `build.sh` build a program of others from a pinned version.

    lines          size of the code, and its limits
    check_links    links in Markdown that lead nowhere
    check_java     whether Java 17 is there, before Spark is downloaded
    version        one version in all places
    chart          generated parts of the Helm chart

    run_tests      the tests of each package on its own, with the sums at the end
    searches       a plugin of pytest for runs of everything
    ports          free ports for servers that a test starts

    mutated_bytes  decoders read bytes that were changed at random
    kubernetes     a real Kubernetes of three nodes on one machine
    kafka          Apache Kafka, to compare with
"""
