package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// cluster is where the clients connect to.
type cluster struct {
	namesrv string
	broker  string
}

func (c *cluster) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{c.namesrv})
}

// topic makes a topic with so many queues, by the client's own admin call.
func (c *cluster) topic(name string, queues int) error {
	tool, err := admin.NewAdmin(admin.WithResolver(c.resolver()))
	if err != nil {
		return err
	}
	defer tool.Close()
	return tool.CreateTopic(context.Background(), admin.WithTopicCreate(name), admin.WithBrokerAddrCreate(c.broker),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues))
}

// producer starts a producer with a client instance of its own.
func (c *cluster) producer(group string, options ...producer.Option) (rocketmq.Producer, error) {
	p, err := rocketmq.NewProducer(c.producerOptions(group, options)...)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

func (c *cluster) producerOptions(group string, options []producer.Option) []producer.Option {
	own := []producer.Option{producer.WithNsResolver(c.resolver()), producer.WithGroupName(group), producer.WithInstanceName(group)}
	return append(own, options...)
}

// consume starts a push consumer that reads the topic from its beginning and hands each message to take.
func (c *cluster) consume(group, instance, topic string, take func(*primitive.MessageExt), options ...consumer.Option) (rocketmq.PushConsumer, error) {
	own := []consumer.Option{
		consumer.WithNsResolver(c.resolver()), consumer.WithGroupName(group), consumer.WithInstance(instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
	reader, err := rocketmq.NewPushConsumer(append(own, options...)...)
	if err != nil {
		return nil, err
	}
	handle := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			take(m)
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := reader.Subscribe(topic, consumer.MessageSelector{}, handle); err != nil {
		return nil, err
	}
	return reader, reader.Start()
}

// sink collects bodies in the order of arrival; several consumers may write to it at once.
type sink struct {
	lock   sync.Mutex
	bodies []string
}

func (s *sink) take(m *primitive.MessageExt) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.bodies = append(s.bodies, string(m.Body))
}

func (s *sink) all() []string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return append([]string{}, s.bodies...)
}

// distinct counts the different bodies.
func (s *sink) distinct() int {
	different := map[string]bool{}
	for _, body := range s.all() {
		different[body] = true
	}
	return len(different)
}

// await polls until the condition holds, for patience at most.
func await(what string, condition func() bool) error {
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}
