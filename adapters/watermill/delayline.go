// Package delayline configures Watermill for delays that wait in RabbitMQ, in the exchanges and queues of delayline.
package delayline

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	rabbit "github.com/rabbitmq/amqp091-go"
)

// Longest is the longest delay, about 8.5 years.
const Longest = (1<<28 - 1) * time.Second

// Failure is the header with the reason why a message was parked.
const Failure = "delayline-failure"

// LastFailed is the header with the time at which a message was parked, in milliseconds since the epoch.
const LastFailed = "delayline-last-failed"

var handle = regexp.MustCompile(`^delay(?:\.[01]{4}){7}\.(.+)\.~\.[A-Za-z0-9_-]{1,64}$`)

// Topic is where to publish a message for an application, which gets it after a delay, rounded up to seconds.
func Topic(delay time.Duration, app string) (string, error) {
	if delay < 0 || delay > Longest {
		return "", fmt.Errorf("a delay is 0 to %v, not %v", Longest, delay)
	}
	seconds := int64((delay + time.Second - 1) / time.Second)
	var key strings.Builder
	key.WriteString("delay.")
	for shift := 24; shift >= 0; shift -= 4 {
		fmt.Fprintf(&key, "%04b.", seconds>>shift&15)
	}
	return key.String() + app, nil
}

// Handle is like Topic, for a message that can be recalled: the topic and the handle are the same.
func Handle(delay time.Duration, app, id string) (string, error) {
	topic, err := Topic(delay, app)
	if topic += ".~." + id; err == nil && !handle.MatchString(topic) {
		err = fmt.Errorf("an id is 1 to 64 of A-Z a-z 0-9 _ -, not %q", id)
	}
	return topic, err
}

// Config is for a publisher with topics of Topic or Handle, and for a subscriber whose topics are names of queues that
// exist. A message that is not acknowledged is rejected. The set is usually called "delay".
func Config(url, set string) amqp.Config {
	config := amqp.NewDurableQueueConfig(url)
	config.Exchange.GenerateName = amqp.GenerateExchangeNameConstant(set)
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = 1
	config.Consume.NoRequeueOnNack = true
	config.Consume.Qos.PrefetchCount = 10
	config.Marshaler = marshaler{}
	config.TopologyBuilder = exists{}
	return config
}

// Park is a middleware that parks what fails with an error for which final is true, with the error's text, and does not
// retry it. The publisher is one of ParkedConfig.
func Park(parked message.Publisher, app string, final func(error) bool) (message.HandlerMiddleware, error) {
	return middleware.PoisonQueueWithFilter(parked, app, final)
}

// ParkedConfig is for the publisher of Park.
func ParkedConfig(url, set string) amqp.Config {
	config := Config(url, set+".parked")
	config.Marshaler = marshaler{parks: true}
	return config
}

// Recall takes back a message that is not due yet.
func Recall(channel *rabbit.Channel, set, of string) error {
	found := handle.FindStringSubmatch(of)
	if found == nil {
		return fmt.Errorf("not the handle of a message with an id: %q", of)
	}
	return channel.QueueBind(set+".recalled."+found[1], of, set+".recall."+found[1], false, nil)
}

// exists declares nothing: the platform has.
type exists struct{}

func (exists) ExchangeDeclare(*rabbit.Channel, string, amqp.Config) error { return nil }

func (exists) BuildTopology(*rabbit.Channel, amqp.BuildTopologyParams, amqp.Config, watermill.LoggerAdapter) error {
	return nil
}

// marshaler reads headers of every kind, and sends none back that the broker or delayline wrote.
type marshaler struct {
	amqp.DefaultMarshaler
	parks bool
}

func (m marshaler) Marshal(msg *message.Message) (rabbit.Publishing, error) {
	publishing, err := m.DefaultMarshaler.Marshal(msg)
	for name := range publishing.Headers {
		if strings.HasPrefix(name, "delayline-") || strings.HasPrefix(name, "x-") || name == "CC" || name == "BCC" {
			delete(publishing.Headers, name)
		}
	}
	if m.parks {
		publishing.Headers[Failure] = msg.Metadata[middleware.ReasonForPoisonedKey]
		publishing.Headers[LastFailed] = time.Now().UnixMilli()
	}
	publishing.MessageId = msg.UUID
	return publishing, err
}

func (m marshaler) Unmarshal(delivery rabbit.Delivery) (*message.Message, error) {
	text := rabbit.Table{}
	for name, value := range delivery.Headers {
		switch value := value.(type) {
		case string:
			text[name] = value
		case int64, int32, int16, bool:
			text[name] = fmt.Sprint(value)
		}
	}
	delivery.Headers = text
	msg, err := m.DefaultMarshaler.Unmarshal(delivery)
	if err == nil && msg.UUID == "" {
		msg.UUID = delivery.MessageId
	}
	return msg, err
}

// Attempt is the number of the retry that a message is: 0 for the first time.
func Attempt(msg *message.Message) int {
	attempt, _ := strconv.Atoi(msg.Metadata["delayline-attempt"])
	return attempt
}
