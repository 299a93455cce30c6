// Schedules: messages that NATS stores again at a time, each in a subject of its own, on another subject of the stream.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	underWayMax = 2_000
	quiet       = 20 * time.Second
	appendPerS  = 4_000
)

// schedules is a stream with schedules, and a connection to its leader.
type schedules struct {
	name   string
	client jetstream.JetStream
	room   chan struct{}
	sent   int
	acked  atomic.Int64
	failed atomic.Int64
}

func newSchedules(urls string, name string, copies int) *schedules {
	background, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	connection, err := nats.Connect(urls)
	check(err)
	client, err := jetstream.New(connection)
	check(err)
	_, err = client.CreateStream(background, jetstream.StreamConfig{
		Name: name, Subjects: []string{name + ".>"}, Replicas: copies, Storage: jetstream.FileStorage,
		AllowMsgSchedules: true,
	})
	check(err)
	leader(connection, name)
	connection.Close()
	client, err = jetstream.New(onLeader(urls, name), jetstream.WithPublishAsyncMaxPending(underWayMax))
	check(err)
	return &schedules{name: name, client: client, room: make(chan struct{}, underWayMax)}
}

func (s *schedules) send(due time.Time) {
	message := nats.NewMsg(fmt.Sprintf("%s.later.%d", s.name, s.sent))
	message.Data = make([]byte, messageBytes)
	binary.BigEndian.PutUint64(message.Data, uint64(due.UnixNano()))
	// WithScheduleAt cuts the time off at the second; the server takes nanoseconds.
	message.Header.Set("Nats-Schedule", "@at "+due.UTC().Format(time.RFC3339Nano))
	message.Header.Set("Nats-Schedule-Target", s.name+".due")
	s.room <- struct{}{}
	s.sent++
	future, err := s.client.PublishMsgAsync(message)
	if err != nil {
		s.failed.Add(1)
		<-s.room
		return
	}
	go func() {
		select {
		case <-future.Ok():
			s.acked.Add(1)
		case err := <-future.Err():
			if s.failed.Add(1) == 1 {
				fmt.Println("the first that failed:", err)
			}
		}
		<-s.room
	}()
}

func (s *schedules) settle() {
	for ends := time.Now().Add(quiet); s.acked.Load()+s.failed.Load() < int64(s.sent) && time.Now().Before(ends); {
		time.Sleep(time.Millisecond)
	}
}

func (s *schedules) read(into chan<- float64) {
	stream, err := s.client.Stream(context.Background(), s.name)
	check(err)
	consumer, err := stream.OrderedConsumer(context.Background(), jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverAllPolicy, FilterSubjects: []string{s.name + ".due"},
	})
	check(err)
	_, err = consumer.Consume(func(message jetstream.Msg) {
		due := time.Unix(0, int64(binary.BigEndian.Uint64(message.Data())))
		into <- float64(time.Since(due).Microseconds()) / 1000
	}, jetstream.PullMaxMessages(5000))
	check(err)
}

// collect returns how late messages were, when all have come, or none came for a while.
func collect(late <-chan float64, count int) []float64 {
	found := []float64{}
	for len(found) < count {
		select {
		case each := <-late:
			found = append(found, each)
		case <-time.After(quiet):
			return found
		}
	}
	return found
}

func scheduled(urls string, command string, rest []string) {
	late := make(chan float64, 1_000_000)
	copies := number(rest[0])
	if command == "due" {
		rate, within, seconds := number(rest[1]), number(rest[2]), number(rest[3])
		s := newSchedules(urls, "due", copies)
		s.read(late)
		begin := time.Now()
		for s.sent < rate*seconds {
			time.Sleep(time.Until(begin.Add(time.Duration(s.sent) * time.Second / time.Duration(rate))))
			s.send(time.Now().Add(time.Duration(1+rand.IntN(within)) * time.Millisecond))
		}
		s.settle()
		found := collect(late, int(s.acked.Load()))
		say(map[string]any{"late_ms": found, "failed": int(s.failed.Load()) + int(s.acked.Load()) - len(found)})
		return
	}
	streams, count := make([]*schedules, number(rest[1])), number(rest[2])
	for n := range streams {
		streams[n] = newSchedules(urls, fmt.Sprintf("at-once-%d", n), copies)
		streams[n].read(late)
	}
	due := time.Now().Add(time.Second + time.Duration(count)*time.Second/appendPerS)
	for n := range count {
		streams[n%len(streams)].send(due)
	}
	acked, failed := 0, 0
	for _, s := range streams {
		s.settle()
		acked, failed = acked+int(s.acked.Load()), failed+int(s.failed.Load())
	}
	stored := time.Until(due).Seconds()
	time.Sleep(time.Until(due))
	found := collect(late, acked)
	longest := 0.0
	for _, each := range found {
		longest = max(longest, each)
	}
	say(map[string]any{
		"messages": len(found), "seconds": longest / 1000, "stored_before_s": stored, "failed": failed + acked - len(found),
	})
}
