// The client of RabbitMQ in `make bench-peers DELAYED=1`. It prints one JSON object, on a line.
//
//	probe URL due COPIES RATE WITHIN_MS SECONDS   messages that are due at random: {"late_ms": [...], "failed": n}
//	probe URL at_once COPIES QUEUES MESSAGES      messages that are due at once: {"messages": n, "seconds": s, ...}
//
// RabbitMQ has no delayed messages. A message waits in a queue without consumers until its time to live is over, and the
// queue gives it to another one as a dead letter. Both queues are quorum queues, and hand over at least once.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	messageBytes = 512
	underWayMax  = 2_000
	quiet        = 20 * time.Second
	appendPerS   = 4_000
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

func channel(connection *amqp.Connection) *amqp.Channel {
	opened, err := connection.Channel()
	check(err)
	return opened
}

// declare makes a queue in which messages wait, and the queue that gets them then. It returns their names.
func declare(opened *amqp.Channel, name string, copies int) (string, string) {
	quorum := amqp.Table{"x-queue-type": "quorum", "x-quorum-initial-group-size": copies}
	waiting := amqp.Table{
		"x-queue-type": "quorum", "x-quorum-initial-group-size": copies, "x-overflow": "reject-publish",
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name, "x-dead-letter-strategy": "at-least-once",
	}
	_, err := opened.QueueDeclare(name, true, false, false, false, quorum)
	check(err)
	_, err = opened.QueueDeclare(name+".waiting", true, false, false, false, waiting)
	check(err)
	return name + ".waiting", name
}

// sender sends messages, with a limit of those that are not confirmed.
type sender struct {
	opened *amqp.Channel
	room   chan struct{}
	body   []byte
	sent   int
	acked  atomic.Int64
	failed atomic.Int64
}

func newSender(connection *amqp.Connection) *sender {
	body := make([]byte, messageBytes)
	_, err := rand.Read(body)
	check(err)
	s := &sender{opened: channel(connection), room: make(chan struct{}, underWayMax), body: body}
	check(s.opened.Confirm(false))
	confirmed := s.opened.NotifyPublish(make(chan amqp.Confirmation, underWayMax))
	go func() {
		for each := range confirmed {
			if each.Ack {
				s.acked.Add(1)
			} else {
				s.failed.Add(1)
			}
			<-s.room
		}
	}()
	return s
}

func (s *sender) send(queue string, due time.Time) {
	body := append([]byte{}, s.body...)
	binary.BigEndian.PutUint64(body, uint64(due.UnixNano()))
	left := max(time.Until(due).Milliseconds(), 0)
	s.room <- struct{}{}
	check(s.opened.PublishWithContext(context.Background(), "", queue, false, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, Expiration: strconv.FormatInt(left, 10), Body: body,
	}))
	s.sent++
}

func (s *sender) settle() {
	for ends := time.Now().Add(quiet); s.acked.Load()+s.failed.Load() < int64(s.sent) && time.Now().Before(ends); {
		time.Sleep(time.Millisecond)
	}
}

func read(connection *amqp.Connection, queue string, into chan<- float64) {
	opened := channel(connection)
	check(opened.Qos(1_000, 0, false))
	messages, err := opened.Consume(queue, "", false, false, false, false, nil)
	check(err)
	for message := range messages {
		due := time.Unix(0, int64(binary.BigEndian.Uint64(message.Body)))
		into <- float64(time.Since(due).Microseconds()) / 1000
		check(message.Ack(false))
	}
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

func main() {
	if len(os.Args) < 6 {
		check(fmt.Errorf("probe URL due|at_once COPIES ..."))
	}
	connection, err := amqp.Dial(os.Args[1])
	check(err)
	defer connection.Close()
	late := make(chan float64, 1_000_000)
	copies := number(os.Args[3])
	s := newSender(connection)
	switch os.Args[2] {
	case "due":
		rate, within, seconds := number(os.Args[4]), number(os.Args[5]), number(os.Args[6])
		waiting, ready := declare(channel(connection), "due", copies)
		go read(connection, ready, late)
		begin := time.Now()
		for s.sent < rate*seconds {
			time.Sleep(time.Until(begin.Add(time.Duration(s.sent) * time.Second / time.Duration(rate))))
			s.send(waiting, time.Now().Add(time.Duration(1+mathrand.IntN(within))*time.Millisecond))
		}
		s.settle()
		found := collect(late, int(s.acked.Load()))
		say(map[string]any{"late_ms": found, "failed": int(s.failed.Load()) + int(s.acked.Load()) - len(found)})
	case "at_once":
		queues, count := number(os.Args[4]), number(os.Args[5])
		waiting := make([]string, queues)
		for n := range queues {
			from, ready := declare(channel(connection), fmt.Sprintf("at-once-%d", n), copies)
			waiting[n] = from
			go read(connection, ready, late)
		}
		due := time.Now().Add(time.Second + time.Duration(count)*time.Second/appendPerS)
		for n := range count {
			s.send(waiting[n%queues], due)
		}
		s.settle()
		stored := time.Until(due).Seconds()
		time.Sleep(time.Until(due))
		found := collect(late, int(s.acked.Load()))
		longest := 0.0
		for _, each := range found {
			longest = max(longest, each)
		}
		say(map[string]any{
			"messages": len(found), "seconds": longest / 1000, "stored_before_s": stored,
			"failed": int(s.failed.Load()) + int(s.acked.Load()) - len(found),
		})
	}
}
