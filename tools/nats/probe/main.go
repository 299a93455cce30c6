// The client of NATS in `make bench-peers`. It prints one JSON object for each answer, a line each.
//
//	probe URLS create STREAM REPLICAS       makes a stream on disks: {"leader": "n1"}
//	probe URLS single STREAM SECONDS        one message in flight: {"latencies_us": [...]}
//	probe URLS bulk STREAM SECONDS PENDING  as many as the servers take: {"messages": n, "seconds": s, "failed": n}
//	probe URLS drain STREAM                 reads all in order: {"messages": n, "seconds": s, "gaps": n}
//	probe URLS steady STREAM RATE SECONDS   sends at a rate: {"started": true}, then {"gap_ms": g, "failed": n, ...}
//	probe URLS due COPIES RATE WITHIN_MS SECONDS   schedules due at random: {"late_ms": [...], "failed": n}
//	probe URLS at_once COPIES STREAMS MESSAGES     schedules due at once: {"messages": n, "seconds": s, ...}
//
// A message has 512 bytes. The producer's settings are the client's defaults, apart from PENDING. For `single`, `bulk`
// and `drain` the client connects to the stream's leader, as the clients of other brokers do by themselves. With
// another server, chosen by chance, each message would take a step more.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	messageBytes = 512
	deadline     = 30 * time.Second
	warmUp       = 2 * time.Second
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func say(answer map[string]any) {
	text, err := json.Marshal(answer)
	check(err)
	fmt.Println(string(text))
}

type probe struct {
	connection *nats.Conn
	stream     string
	body       []byte
}

func main() {
	if len(os.Args) < 4 {
		check(fmt.Errorf("probe URLS create|single|bulk|drain|steady STREAM ..."))
	}
	var connection *nats.Conn
	var err error
	switch os.Args[2] {
	case "due", "at_once":
		scheduled(os.Args[1], os.Args[2], os.Args[3:])
		return
	case "single", "bulk", "drain":
		connection = onLeader(os.Args[1], os.Args[3])
	default:
		connection, err = nats.Connect(os.Args[1])
		check(err)
	}
	defer connection.Close()
	body := make([]byte, messageBytes)
	_, err = rand.Read(body)
	check(err)
	p := probe{connection, os.Args[3], body}
	rest := os.Args[4:]
	switch os.Args[2] {
	case "create":
		p.create(number(rest[0]))
	case "single":
		p.single(time.Duration(number(rest[0])) * time.Second)
	case "bulk":
		p.bulk(time.Duration(number(rest[0]))*time.Second, number(rest[1]))
	case "drain":
		p.drain()
	case "steady":
		p.steady(number(rest[0]), time.Duration(number(rest[1]))*time.Second)
	default:
		check(fmt.Errorf("unknown: %s", os.Args[2]))
	}
}

// onLeader connects to the server that leads a stream.
func onLeader(urls string, stream string) *nats.Conn {
	for _, url := range strings.Split(urls, ",") {
		connection, err := nats.Connect(url)
		check(err)
		if leader(connection, stream) == connection.ConnectedServerName() {
			return connection
		}
		connection.Close()
	}
	check(fmt.Errorf("none of %s leads %s", urls, stream))
	return nil
}

// leader waits until a stream has a leader, and returns that server's name. A server without a cluster leads all.
func leader(connection *nats.Conn, stream string) string {
	background, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	client, err := jetstream.New(connection)
	check(err)
	for ; ; time.Sleep(50 * time.Millisecond) {
		made, err := client.Stream(background, stream)
		check(err)
		if about := made.CachedInfo().Cluster; about == nil {
			return connection.ConnectedServerName()
		} else if about.Leader != "" {
			return about.Leader
		}
	}
}

func (p probe) subject() string { return "bench." + p.stream }

func (p probe) create(replicas int) {
	context, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	client, err := jetstream.New(p.connection)
	check(err)
	_, err = client.CreateStream(context, jetstream.StreamConfig{
		Name: p.stream, Subjects: []string{p.subject()}, Replicas: replicas, Storage: jetstream.FileStorage,
	})
	check(err)
	say(map[string]any{"leader": leader(p.connection, p.stream)})
}

func (p probe) single(duration time.Duration) {
	client, err := jetstream.New(p.connection)
	check(err)
	ends := time.Now().Add(warmUp)
	for time.Now().Before(ends) {
		_, err := client.Publish(context.Background(), p.subject(), p.body)
		check(err)
	}
	taken := []int64{}
	ends = time.Now().Add(duration)
	for begin := time.Now(); begin.Before(ends); begin = time.Now() {
		_, err := client.Publish(context.Background(), p.subject(), p.body)
		check(err)
		taken = append(taken, time.Since(begin).Microseconds())
	}
	say(map[string]any{"latencies_us": taken})
}

func (p probe) bulk(duration time.Duration, pending int) {
	var lock sync.Mutex
	failed := 0
	onError := func(jetstream.JetStream, *nats.Msg, error) {
		lock.Lock()
		failed++
		lock.Unlock()
	}
	client, err := jetstream.New(p.connection,
		jetstream.WithPublishAsyncMaxPending(pending), jetstream.WithPublishAsyncErrHandler(onError))
	check(err)
	publish := func(duration time.Duration) (int, time.Duration) {
		sent := 0
		begin := time.Now()
		for time.Since(begin) < duration {
			_, err := client.PublishAsync(p.subject(), p.body)
			if errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
				continue // too many messages are under way; the client waited 200 ms before
			}
			check(err)
			sent++
		}
		<-client.PublishAsyncComplete()
		return sent, time.Since(begin)
	}
	publish(warmUp)
	lock.Lock()
	failed = 0
	lock.Unlock()
	sent, took := publish(duration)
	lock.Lock()
	defer lock.Unlock()
	say(map[string]any{"messages": sent - failed, "seconds": took.Seconds(), "failed": failed})
}

func (p probe) drain() {
	background := context.Background()
	client, err := jetstream.New(p.connection)
	check(err)
	stream, err := client.Stream(background, p.stream)
	check(err)
	found, err := stream.Info(background)
	check(err)
	wanted := int(found.State.Msgs)
	consumer, err := stream.OrderedConsumer(background, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	check(err)
	done := make(chan struct{})
	taken, gaps := 0, 0
	var last uint64
	begin := time.Now()
	reading, err := consumer.Consume(func(message jetstream.Msg) {
		about, err := message.Metadata()
		check(err)
		if taken > 0 && about.Sequence.Stream != last+1 {
			gaps++
		}
		last = about.Sequence.Stream
		if taken++; taken == wanted {
			close(done)
		}
	}, jetstream.PullMaxMessages(5000))
	check(err)
	<-done
	took := time.Since(begin)
	reading.Stop()
	say(map[string]any{"messages": taken, "seconds": took.Seconds(), "gaps": gaps})
}

// steady notes the longest time between two acknowledgements. The later one came two seconds after the start or later.
func (p probe) steady(rate int, duration time.Duration) {
	client, err := jetstream.New(p.connection)
	check(err)
	_, err = client.Publish(context.Background(), p.subject(), p.body)
	check(err)
	say(map[string]any{"started": true})
	var lock sync.Mutex
	var waiting sync.WaitGroup
	acknowledged, failed := 0, 0
	begin := time.Now()
	last := begin
	var gap time.Duration
	fail := func() {
		lock.Lock()
		failed++
		lock.Unlock()
	}
	for sent := 0; time.Since(begin) < duration; time.Sleep(time.Millisecond) {
		for due := int(time.Since(begin).Seconds() * float64(rate)); sent < due; sent++ {
			future, err := client.PublishAsync(p.subject(), p.body)
			if err != nil {
				fail()
				continue
			}
			waiting.Add(1)
			go func() {
				defer waiting.Done()
				select {
				case <-future.Ok():
					lock.Lock()
					acknowledged++
					now := time.Now()
					if since := now.Sub(last); now.Sub(begin) > warmUp && since > gap {
						gap = since
					}
					last = now
					lock.Unlock()
				case <-future.Err():
					fail()
				case <-time.After(deadline):
					fail()
				}
			}()
		}
	}
	lock.Lock()
	if since := time.Since(last); since > gap {
		gap = since // nothing was acknowledged to the end
	}
	lock.Unlock()
	ended := make(chan struct{})
	go func() { waiting.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
	}
	lock.Lock()
	defer lock.Unlock()
	say(map[string]any{"gap_ms": float64(gap.Microseconds()) / 1000, "messages": acknowledged, "failed": failed})
}
