package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	failoverTopic = "go_failover"
	failoverEach  = 100 // acknowledged sends before the death is asked for, and after it
	failoverKeys  = 5
)

// failoverScenario sends without a pause while the caller kills the leader, and reads with two groups, one orderly.
//
// When the stream runs it prints the line "kill the leader now", and reads one when that is done. Before that a transaction is left open and a delayed
// message is sent: the new leader must ask for the one and deliver the other.
func failoverScenario(c *cluster) (map[string]any, error) {
	if err := c.topic(failoverTopic, 4); err != nil {
		return nil, err
	}
	if err := c.topic(failoverTopic+"_later", 1); err != nil {
		return nil, err
	}
	var read, later sink
	order := newOrder()
	for _, group := range []struct {
		name, topic string
		take        func(*primitive.MessageExt)
		options     []consumer.Option
	}{
		{"go_failover_group", failoverTopic, read.take, nil},
		{"go_failover_orderly", failoverTopic, order.take, []consumer.Option{consumer.WithConsumerOrder(true)}},
		{"go_failover_later", failoverTopic + "_later", later.take, nil},
	} {
		reader, err := c.consume(group.name, group.name, group.topic, group.take, group.options...)
		if err != nil {
			return nil, err
		}
		defer reader.Shutdown()
	}
	d := &decisions{onSend: map[string]primitive.LocalTransactionState{"open": primitive.UnknowState},
		onAsk: map[string]primitive.LocalTransactionState{"open": primitive.UnknowState}, asked: map[string]int{}}
	transactions, err := c.transactional("go_failover_transactions", d)
	if err != nil {
		return nil, err
	}
	defer transactions.Shutdown()
	p, err := c.producer("go_failover_producer", producer.WithQueueSelector(producer.NewHashQueueSelector()))
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	if err := sendLater(transactions, p); err != nil {
		return nil, err
	}
	s, err := streamThroughDeath(p)
	if err != nil {
		return s.report(), err
	}
	d.answer("open", primitive.CommitMessageState)
	report := s.report()
	err = await("every acknowledged message read by both groups, the open transaction and the delayed message too", func() bool {
		report["unread"] = len(s.missing(read.all()))
		report["unread_orderly"] = len(s.missing(flat(order.snapshot())))
		return report["unread"] == 0 && report["unread_orderly"] == 0 && later.distinct() == 2
	})
	report["by_key"], report["later"], report["asked"] = order.snapshot(), later.all(), d.askedFor()["open"]
	report["read_again"] = len(read.all()) - read.distinct()
	return report, err
}

// sendLater leaves a transaction open and sends a message of delay level 3, ten seconds.
func sendLater(transactions rocketmq.TransactionProducer, p rocketmq.Producer) error {
	topic := failoverTopic + "_later"
	if _, err := transactions.SendMessageInTransaction(context.Background(), primitive.NewMessage(topic, []byte("open"))); err != nil {
		return fmt.Errorf("open transaction: %w", err)
	}
	if _, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte("delayed")).WithDelayTimeLevel(3)); err != nil {
		return fmt.Errorf("delayed message: %w", err)
	}
	return nil
}

// stream is what a producer was told about a row of numbered messages.
type stream struct {
	acknowledged []string
	refused      int
	gap          time.Duration // the longest time between two acknowledgements
}

func (s *stream) report() map[string]any {
	return map[string]any{"acknowledged": len(s.acknowledged), "refused": s.refused, "gap_ms": s.gap.Milliseconds()}
}

// missing are the acknowledged bodies that are not among these.
func (s *stream) missing(read []string) []string {
	have := map[string]bool{}
	for _, body := range read {
		have[body] = true
	}
	lost := []string{}
	for _, body := range s.acknowledged {
		if !have[body] {
			lost = append(lost, body)
		}
	}
	return lost
}

// streamThroughDeath sends number after number until so many worked after the death; one that failed is not repeated.
func streamThroughDeath(p rocketmq.Producer) (*stream, error) {
	var isDead atomic.Bool
	go func() {
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err == nil {
			isDead.Store(true)
		}
	}()
	s := &stream{}
	last, deadline, after := time.Now(), time.Now().Add(2*patience), 0
	for i := 0; after < failoverEach; i++ {
		if time.Now().After(deadline) {
			return s, fmt.Errorf("the stream did not go on after the leader's death within %v", 2*patience)
		}
		wasDead := isDead.Load()
		body := fmt.Sprint(i)
		m := primitive.NewMessage(failoverTopic, []byte(body)).WithShardingKey(fmt.Sprint("key-", i%failoverKeys))
		if _, err := p.SendSync(context.Background(), m); err != nil {
			s.refused++
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if gap := time.Since(last); gap > s.gap {
			s.gap = gap
		}
		last = time.Now()
		s.acknowledged = append(s.acknowledged, body)
		if len(s.acknowledged) == failoverEach {
			fmt.Println("kill the leader now")
		}
		if wasDead {
			after++
		}
		time.Sleep(2 * time.Millisecond)
	}
	return s, nil
}

func flat(byKey map[string][]string) []string {
	all := []string{}
	for _, bodies := range byKey {
		all = append(all, bodies...)
	}
	return all
}
