package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// sinceSent is how long ago the body's number, Unix milliseconds, was.
func sinceSent(m *primitive.MessageExt) (int64, error) {
	sent, err := strconv.ParseInt(string(m.Body), 10, 64)
	return time.Now().UnixMilli() - sent, err
}

// delayScenario: a message by delay level and one by a time of its own; reports how late each came, in milliseconds.
func delayScenario(c *cluster) (map[string]any, error) {
	const topic = "go_delay"
	if err := c.topic(topic, 1); err != nil {
		return nil, err
	}
	var lock sync.Mutex
	late := map[string]int64{}
	reader, err := c.consume("go_delay_group", "go_delay_reader", topic, func(m *primitive.MessageExt) {
		lock.Lock()
		defer lock.Unlock()
		if ms, err := sinceSent(m); err == nil {
			late[m.GetTags()] = ms
		}
	})
	if err != nil {
		return nil, err
	}
	defer reader.Shutdown()
	p, err := c.producer("go_delay_producer")
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	for _, tag := range []string{"level-1", "after-1500-ms"} {
		m := primitive.NewMessage(topic, []byte(fmt.Sprint(time.Now().UnixMilli()))).WithTag(tag)
		if tag == "level-1" {
			m.WithDelayTimeLevel(1)
		} else {
			m.WithProperty("TIMER_DELAY_MS", "1500")
		}
		if _, err := p.SendSync(context.Background(), m); err != nil {
			return nil, fmt.Errorf("%s: %w", tag, err)
		}
	}
	err = await("both messages", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(late) == 2
	})
	return map[string]any{"late_ms": late}, err
}

// decisions answers for transactions: by the body's name when sent, and again when the broker asks.
type decisions struct {
	lock   sync.Mutex
	onSend map[string]primitive.LocalTransactionState
	onAsk  map[string]primitive.LocalTransactionState
	asked  map[string]int
}

func (d *decisions) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.onSend[string(m.Body)]
}

func (d *decisions) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.asked[string(m.Body)]++
	return d.onAsk[string(m.Body)]
}

// answer sets what the broker is told from now on when it asks for this body.
func (d *decisions) answer(body string, state primitive.LocalTransactionState) {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.onAsk[body] = state
}

// askedFor tells how often the broker asked, by body.
func (d *decisions) askedFor() map[string]int {
	d.lock.Lock()
	defer d.lock.Unlock()
	copied := map[string]int{}
	for body, count := range d.asked {
		copied[body] = count
	}
	return copied
}

// transactional starts a producer whose transactions are decided by d.
func (c *cluster) transactional(group string, d *decisions) (rocketmq.TransactionProducer, error) {
	p, err := rocketmq.NewTransactionProducer(d, c.producerOptions(group, nil)...)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

// transactionScenario: committed at once, rolled back at once, and both again by the broker's check-back.
func transactionScenario(c *cluster) (map[string]any, error) {
	const topic = "go_transaction"
	if err := c.topic(topic, 2); err != nil {
		return nil, err
	}
	var read sink
	reader, err := c.consume("go_transaction_group", "go_transaction_reader", topic, read.take)
	if err != nil {
		return nil, err
	}
	defer reader.Shutdown()
	const commit, rollback, unknown = primitive.CommitMessageState, primitive.RollbackMessageState, primitive.UnknowState
	d := &decisions{
		onSend: map[string]primitive.LocalTransactionState{
			"commit": commit, "rollback": rollback, "asked-commit": unknown, "asked-rollback": unknown,
		},
		onAsk: map[string]primitive.LocalTransactionState{"asked-commit": commit, "asked-rollback": rollback},
		asked: map[string]int{},
	}
	p, err := c.transactional("go_transaction_producer", d)
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	for _, body := range []string{"rollback", "commit", "asked-rollback", "asked-commit"} {
		if _, err := p.SendMessageInTransaction(context.Background(), primitive.NewMessage(topic, []byte(body))); err != nil {
			return nil, fmt.Errorf("%s: %w", body, err)
		}
	}
	err = await("both committed messages read, both open ones asked for", func() bool {
		return read.distinct() >= 2 && len(d.askedFor()) == 2
	})
	return map[string]any{"read": read.all(), "asked": d.askedFor()}, err
}
