// The client of Kafka in `make bench-peers`. It prints one JSON object for each answer, a line each.
//
//   java -cp '.tools/kafka/broker/*' Probe.java SERVERS COMMAND TOPIC ...
//
//   create TOPIC REPLICAS IN_SYNC FLUSH       makes a topic with one partition: {"leader": "1"}
//   single TOPIC SECONDS                      one message in flight: {"latencies_us": [...]}
//   bulk TOPIC SECONDS BATCH_BYTES LINGER_MS  as many as the brokers take: {"messages": n, "seconds": s, "failed": n}
//   drain TOPIC                               reads all in order: {"messages": n, "seconds": s, "gaps": n}
//   steady TOPIC RATE SECONDS                 sends at a rate: {"started": true}, then {"gap_ms": g, "failed": n, ...}
//
// A message has 512 bytes. Each is acknowledged by all replicas that are in sync. Other settings are the client's
// defaults, but `single` sends at once (linger.ms=0; the default of 5 ms would be nearly all of the time).

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

public class Probe {
    static final int MESSAGE_BYTES = 512;
    static final long SECOND_NS = 1_000_000_000L;
    static final long WARM_UP_NS = 3 * SECOND_NS;
    static final long START_NS = 30 * SECOND_NS;

    final String servers;
    final String topic;
    final byte[] body = new byte[MESSAGE_BYTES];

    Probe(String servers, String topic) {
        this.servers = servers;
        this.topic = topic;
        new Random(1).nextBytes(body);
    }

    public static void main(String[] given) throws Exception {
        Probe probe = new Probe(given[0], given[2]);
        switch (given[1]) {
            case "create" -> probe.create(Short.parseShort(given[3]), given[4], given[5]);
            case "single" -> probe.single(Long.parseLong(given[3]) * SECOND_NS);
            case "bulk" -> probe.bulk(Long.parseLong(given[3]) * SECOND_NS, given[4], given[5]);
            case "drain" -> probe.drain();
            case "steady" -> probe.steady(Long.parseLong(given[3]), Long.parseLong(given[4]) * SECOND_NS);
            default -> throw new IllegalArgumentException(given[1]);
        }
    }

    void create(short replicas, String inSync, String flush) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            Map<String, String> settings = flush.equals("true")
                ? Map.of("min.insync.replicas", inSync, "flush.messages", "1")
                : Map.of("min.insync.replicas", inSync);
            admin.createTopics(List.of(new NewTopic(topic, 1, replicas).configs(settings))).all().get();
            long until = System.nanoTime() + START_NS;
            String leader = leader(admin);
            while (leader.isEmpty() && System.nanoTime() < until) {
                Thread.sleep(50);
                leader = leader(admin);
            }
            if (leader.isEmpty()) {
                throw new IllegalStateException("the topic has no leader yet");
            }
            System.out.printf("{\"leader\": \"%s\"}%n", leader);
        }
    }

    /** The leader's number; empty: the broker that was asked does not know the topic yet, or it has no leader. */
    String leader(Admin admin) throws Exception {
        try {
            var found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().get(0);
            return found.leader() == null ? "" : found.leader().idString();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof UnknownTopicOrPartitionException) {
                return "";
            }
            throw error;
        }
    }

    KafkaProducer<byte[], byte[]> producer(Map<String, String> more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("acks", "all");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.putAll(more);
        return new KafkaProducer<>(settings);
    }

    ProducerRecord<byte[], byte[]> message() {
        return new ProducerRecord<>(topic, 0, null, body);
    }

    void single(long durationNs) throws Exception {
        List<Long> taken = new ArrayList<>();
        try (var producer = producer(Map.of("linger.ms", "0"))) {
            long ends = System.nanoTime() + WARM_UP_NS;
            while (System.nanoTime() < ends) {
                producer.send(message()).get();
            }
            ends = System.nanoTime() + durationNs;
            for (long begin = System.nanoTime(); begin < ends; begin = System.nanoTime()) {
                producer.send(message()).get();
                taken.add((System.nanoTime() - begin) / 1000);
            }
        }
        System.out.printf("{\"latencies_us\": %s}%n", taken);
    }

    void bulk(long durationNs, String batchBytes, String lingerMs) throws Exception {
        var settings = Map.of("batch.size", batchBytes, "linger.ms", lingerMs, "buffer.memory", "67108864");
        AtomicLong acknowledged = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        AtomicLong last = new AtomicLong();
        long begin;
        try (var producer = producer(settings)) {
            long ends = System.nanoTime() + WARM_UP_NS;
            while (System.nanoTime() < ends) {
                producer.send(message());
            }
            producer.flush();
            begin = System.nanoTime();
            while (System.nanoTime() - begin < durationNs) {
                producer.send(message(), (about, error) -> {
                    (error == null ? acknowledged : failed).incrementAndGet();
                    last.set(System.nanoTime());
                });
            }
        }
        System.out.printf("{\"messages\": %d, \"seconds\": %.4f, \"failed\": %d}%n",
            acknowledged.get(), (last.get() - begin) / 1e9, failed.get());
    }

    void drain() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings)) {
            var partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            long wanted = consumer.endOffsets(List.of(partition)).get(partition);
            consumer.seekToBeginning(List.of(partition));
            long taken = 0;
            long gaps = 0;
            long begin = System.nanoTime();
            while (taken < wanted) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(30))) {
                    gaps += record.offset() == taken ? 0 : 1;
                    taken++;
                }
            }
            System.out.printf("{\"messages\": %d, \"seconds\": %.4f, \"gaps\": %d}%n",
                taken, (System.nanoTime() - begin) / 1e9, gaps);
        }
    }

    /** Notes the longest time between two acknowledgements. The later one came two seconds after the start or later. */
    void steady(long rate, long durationNs) throws Exception {
        AtomicLong acknowledged = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        AtomicLong last = new AtomicLong();
        AtomicLong gap = new AtomicLong();
        var producer = producer(Map.of());
        producer.send(message()).get();
        System.out.println("{\"started\": true}");
        long begin = System.nanoTime();
        last.set(begin);
        long sent = 0;
        while (System.nanoTime() - begin < durationNs) {
            for (long due = (System.nanoTime() - begin) * rate / SECOND_NS; sent < due; sent++) {
                producer.send(message(), (about, error) -> {
                    if (error != null) {
                        failed.incrementAndGet();
                        return;
                    }
                    acknowledged.incrementAndGet();
                    long now = System.nanoTime();
                    long since = now - last.getAndSet(now);
                    if (now - begin > 2 * SECOND_NS) {
                        gap.accumulateAndGet(since, Math::max);
                    }
                });
            }
            Thread.sleep(1);
        }
        gap.accumulateAndGet(System.nanoTime() - last.get(), Math::max);
        producer.close(Duration.ofSeconds(5));
        System.out.printf("{\"gap_ms\": %.1f, \"messages\": %d, \"failed\": %d}%n",
            gap.get() / 1e6, acknowledged.get(), failed.get());
    }
}
