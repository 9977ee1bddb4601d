// On a broker of its own: `delayline dev --apps testdata/apps.toml --unit-ms 10 -- go test`.
package delayline

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	rabbit "github.com/rabbitmq/amqp091-go"
)

const patience = time.Minute

var errStolen = errors.New("the card is stolen")

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func TestADelayIsRoundedUpAndHasARange(t *testing.T) {
	for delay, want := range map[time.Duration]string{
		0:                         "delay.0000.0000.0000.0000.0000.0000.0000.a.b",
		89500 * time.Millisecond:  "delay.0000.0000.0000.0000.0000.0101.1010.a.b",
		Longest:                   "delay.1111.1111.1111.1111.1111.1111.1111.a.b",
		Longest - time.Nanosecond: "delay.1111.1111.1111.1111.1111.1111.1111.a.b",
	} {
		if got := must(Topic(delay, "a.b")); got != want {
			t.Errorf("%v: %v, not %v", delay, got, want)
		}
	}
	for _, wrong := range []time.Duration{-1, Longest + 1} {
		if topic, err := Topic(wrong, "a"); err == nil {
			t.Errorf("%v: %v", wrong, topic)
		}
	}
	for _, wrong := range []string{"", "a.b", "ä"} {
		if handle, err := Handle(0, "a", wrong); err == nil {
			t.Errorf("%v", handle)
		}
	}
}

// start runs a router that handles the messages of the queue, and returns a publisher and the arrived messages.
func start(t *testing.T, handler func(*message.Message) error) (message.Publisher, <-chan string) {
	t.Helper()
	url, logger := os.Getenv("AMQP_URL"), watermill.NopLogger{}
	publisher := must(amqp.NewPublisher(Config(url, "delay"), logger))
	parked := must(amqp.NewPublisher(ParkedConfig(url, "delay"), logger))
	subscriber := must(amqp.NewSubscriber(Config(url, "delay"), logger))
	router := must(message.NewRouter(message.RouterConfig{}, logger))
	came := make(chan string, 100)
	router.AddMiddleware(must(Park(parked, "billing", func(err error) bool { return errors.Is(err, errStolen) })))
	router.AddConsumerHandler("billing", "billing-in", subscriber, func(msg *message.Message) error {
		came <- string(msg.Payload)
		return handler(msg)
	})
	var running sync.WaitGroup
	running.Go(func() {
		if err := router.Run(context.Background()); err != nil {
			panic(err)
		}
	})
	<-router.Running()
	t.Cleanup(func() {
		for _, closing := range []func() error{router.Close, publisher.Close, parked.Close} {
			if err := closing(); err != nil {
				t.Error(err)
			}
		}
		running.Wait()
	})
	return publisher, came
}

func send(t *testing.T, publisher message.Publisher, topic, text string) *message.Message {
	t.Helper()
	msg := message.NewMessage(watermill.NewUUID(), []byte(text))
	if err := publisher.Publish(topic, msg); err != nil {
		t.Fatal(err)
	}
	return msg
}

func comes(t *testing.T, came <-chan string, want string) {
	t.Helper()
	select {
	case got := <-came:
		if got != want {
			t.Fatalf("%q came, not %q", got, want)
		}
	case <-time.After(patience):
		t.Fatalf("%q did not come", want)
	}
}

// of returns the next message of a queue that only an administrator may read.
func of(t *testing.T, queue string) rabbit.Delivery {
	t.Helper()
	connection := must(rabbit.Dial(os.Getenv("DELAYLINE_URL")))
	defer connection.Close()
	channel := must(connection.Channel())
	for begun := time.Now(); time.Since(begun) < patience; time.Sleep(100 * time.Millisecond) {
		if message, found, err := channel.Get(queue, true); err != nil {
			t.Fatal(err)
		} else if found {
			return message
		}
	}
	t.Fatalf("%s stays empty", queue)
	panic("unreachable")
}

func TestMessagesAreDelayedAndRetried(t *testing.T) {
	publisher, came := start(t, func(msg *message.Message) error {
		if Attempt(msg) == 0 {
			return errors.New("the bank is closed")
		}
		return nil
	})
	send(t, publisher, must(Topic(2*time.Second, "billing")), "invoice 17")
	comes(t, came, "invoice 17")
	comes(t, came, "invoice 17")
	// A message for another application is refused, and the next one is still sent.
	message := message.NewMessage("id", []byte("not ours"))
	if err := publisher.Publish(must(Topic(0, "stranger")), message); err == nil {
		t.Fatal("it was sent")
	}
	send(t, publisher, must(Topic(0, "billing")), "the next one")
	comes(t, came, "the next one")
	comes(t, came, "the next one")
}

func TestWhatIsFinalIsParked(t *testing.T) {
	publisher, came := start(t, func(msg *message.Message) error {
		if strings.Contains(string(msg.Payload), "stolen") {
			return errStolen
		}
		return nil
	})
	sent := send(t, publisher, must(Topic(2*time.Second, "billing")), "a stolen card")
	comes(t, came, "a stolen card")
	parked := of(t, "delay.parked")
	if parked.RoutingKey != "billing" || parked.MessageId != sent.UUID || parked.Headers[Failure] != errStolen.Error() {
		t.Fatalf("%+v", parked)
	}
	if at, ok := parked.Headers[LastFailed].(int64); !ok || time.Since(time.UnixMilli(at)) > patience {
		t.Errorf("%+v", parked.Headers)
	}
	for name, value := range parked.Headers {
		// RabbitMQ 3.10 counts the first delivery, too.
		if strings.HasPrefix(name, "x-") && (name != "x-delivery-count" || value != int64(0)) {
			t.Errorf("%s was sent again", name)
		}
	}
	send(t, publisher, must(Topic(0, "billing")), "after it")
	comes(t, came, "after it")
}

func TestARecalledMessageDoesNotCome(t *testing.T) {
	publisher, came := start(t, func(*message.Message) error { return nil })
	handle := must(Handle(300*time.Second, "billing", "invoice-17"))
	sent := send(t, publisher, handle, "recalled")
	connection := must(rabbit.Dial(os.Getenv("AMQP_URL")))
	defer connection.Close()
	channel := must(connection.Channel())
	if err := Recall(channel, "delay", handle); err != nil {
		t.Fatal(err)
	}
	if recalled := of(t, "delay.recalled.billing"); recalled.MessageId != sent.UUID {
		t.Fatalf("%+v", recalled)
	}
	send(t, publisher, must(Topic(0, "billing")), "after it")
	comes(t, came, "after it")
	if err := Recall(channel, "delay", must(Topic(1, "billing"))); err == nil {
		t.Fatal("a key without an id was recalled")
	}
}
