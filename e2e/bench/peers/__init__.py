"""Others' brokers in the same run as Seriatim, with as many copies and the same flushes: `make bench-peers`.

The names of modules with `kafka_` are of one broker beside Spark; the others are of clusters.

    run           the command, for Kafka and NATS
    delayed       the command for delayed messages, for NATS and RabbitMQ
    peer          what every peer has: a cluster, and programs that send and read
    kafka         Kafka as a peer
    nats          NATS as a peer
    rabbitmq      runs RabbitMQ's servers
    servers       runs the servers of others: a log, the line that says that they are ready, the end
    kafka_broker  one Kafka broker, also for `KAFKA=1 make bench-spark`
    kafka_source  Spark's source of Kafka beside ours, for the same command
"""
