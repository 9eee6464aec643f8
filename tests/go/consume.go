package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// fill sends count messages numbered from 0 to the topic; key spreads them, empty: the client chooses the queue.
func fill(c *cluster, topic string, count int, key func(int) string) error {
	p, err := c.producer(topic+"_producer", producer.WithQueueSelector(producer.NewHashQueueSelector()))
	if err != nil {
		return err
	}
	defer p.Shutdown()
	for i := 0; i < count; i++ {
		body := fmt.Sprint(i)
		m := primitive.NewMessage(topic, []byte(body))
		if key != nil {
			m.WithShardingKey(key(i))
		}
		if _, err := p.SendSync(context.Background(), m); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	return nil
}

// shareScenario: two consumers of one group share the queues, both read.
func shareScenario(c *cluster) (map[string]any, error) {
	const topic, count = "go_share", 64
	if err := c.topic(topic, 4); err != nil {
		return nil, err
	}
	readers := []*sink{{}, {}}
	for i, read := range readers {
		reader, err := c.consume("go_share_group", fmt.Sprint("go_share_reader_", i), topic, read.take)
		if err != nil {
			return nil, err
		}
		defer reader.Shutdown()
	}
	var fault error
	err := await("both consumers have read", func() bool {
		if readers[0].distinct() > 0 && readers[1].distinct() > 0 {
			return true
		}
		fault = fill(c, topic, count, nil)
		return fault != nil
	})
	if fault != nil {
		err = fault
	}
	return map[string]any{"read": []int{readers[0].distinct(), readers[1].distinct()}}, err
}

// orderlyScenario: an orderly consumer reads each key in the order of sending, and no queue twice at once.
func orderlyScenario(c *cluster) (map[string]any, error) {
	const topic, count, keys = "go_orderly", 100, 5
	if err := c.topic(topic, 4); err != nil {
		return nil, err
	}
	key := func(i int) string { return fmt.Sprint("key-", i%keys) }
	if err := fill(c, topic, count, key); err != nil {
		return nil, err
	}
	order := newOrder()
	reader, err := c.consume("go_orderly_group", "go_orderly_reader", topic, order.take, consumer.WithConsumerOrder(true))
	if err != nil {
		return nil, err
	}
	defer reader.Shutdown()
	err = await("every message read", func() bool { return order.count() == count })
	return map[string]any{"by_key": order.snapshot(), "queues_read_twice_at_once": order.collisions}, err
}

// order keeps the bodies of each key as they arrive, and notices when two messages of one queue are handled at once.
type order struct {
	lock       sync.Mutex
	byKey      map[string][]string
	busy       map[int]bool
	collisions int
}

func newOrder() *order {
	return &order{byKey: map[string][]string{}, busy: map[int]bool{}}
}

func (o *order) take(m *primitive.MessageExt) {
	queue := m.Queue.QueueId
	o.enter(queue)
	o.lock.Lock()
	defer o.lock.Unlock()
	o.byKey[m.GetShardingKey()] = append(o.byKey[m.GetShardingKey()], string(m.Body))
	o.busy[queue] = false
}

func (o *order) enter(queue int) {
	o.lock.Lock()
	defer o.lock.Unlock()
	if o.busy[queue] {
		o.collisions++
	}
	o.busy[queue] = true
}

func (o *order) count() int {
	o.lock.Lock()
	defer o.lock.Unlock()
	count := 0
	for _, bodies := range o.byKey {
		count += len(bodies)
	}
	return count
}

func (o *order) snapshot() map[string][]string {
	o.lock.Lock()
	defer o.lock.Unlock()
	copied := map[string][]string{}
	for key, bodies := range o.byKey {
		copied[key] = append([]string{}, bodies...)
	}
	return copied
}

// broadcastScenario: every consumer of a broadcasting group reads every message.
func broadcastScenario(c *cluster) (map[string]any, error) {
	const topic, count = "go_broadcast", 20
	if err := c.topic(topic, 4); err != nil {
		return nil, err
	}
	if err := fill(c, topic, count, nil); err != nil {
		return nil, err
	}
	readers := []*sink{{}, {}}
	for i, read := range readers {
		reader, err := c.consume("go_broadcast_group", fmt.Sprint("go_broadcast_reader_", i), topic, read.take,
			consumer.WithConsumerModel(consumer.BroadCasting))
		if err != nil {
			return nil, err
		}
		defer reader.Shutdown()
	}
	err := await("both consumers have read everything", func() bool {
		return readers[0].distinct() == count && readers[1].distinct() == count
	})
	return map[string]any{"read": []int{readers[0].distinct(), readers[1].distinct()}}, err
}
