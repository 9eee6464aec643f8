package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// sendScenario sends in each of the client's four ways and reads all of it back with one consumer.
func sendScenario(c *cluster) (map[string]any, error) {
	const topic, each = "go_send", 20
	if err := c.topic(topic, 4); err != nil {
		return nil, err
	}
	p, err := c.producer("go_send_producer")
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	acknowledged := map[string]int{}
	for _, way := range []struct {
		name string
		send func(rocketmq.Producer, []*primitive.Message) (int, error)
	}{{"sync", sendSync}, {"async", sendAsync}, {"oneway", sendOneWay}, {"batch", sendBatch}} {
		messages := make([]*primitive.Message, each)
		for i := range messages {
			messages[i] = primitive.NewMessage(topic, []byte(fmt.Sprintf("%s-%d", way.name, i)))
			messages[i].WithTag("tag-" + way.name).WithKeys([]string{fmt.Sprintf("key-%s-%d", way.name, i)})
		}
		if acknowledged[way.name], err = way.send(p, messages); err != nil {
			return nil, fmt.Errorf("%s: %w", way.name, err)
		}
	}
	var read sink
	wrong := &sink{}
	reader, err := c.consume("go_send_group", "go_send_reader", topic, func(m *primitive.MessageExt) {
		if m.GetKeys() != "key-"+string(m.Body) || m.GetTags() == "" {
			wrong.take(m)
		}
		read.take(m)
	})
	if err != nil {
		return nil, err
	}
	defer reader.Shutdown()
	err = await("every message read", func() bool { return read.distinct() == 4*each })
	return map[string]any{"acknowledged": acknowledged, "read": read.all(), "wrong": wrong.all()}, err
}

func sendSync(p rocketmq.Producer, messages []*primitive.Message) (int, error) {
	ok := 0
	for _, m := range messages {
		result, err := p.SendSync(context.Background(), m)
		if err != nil {
			return ok, err
		}
		if result.Status == primitive.SendOK && result.MsgID != "" && result.OffsetMsgID != "" {
			ok++
		}
	}
	return ok, nil
}

func sendAsync(p rocketmq.Producer, messages []*primitive.Message) (int, error) {
	var group sync.WaitGroup
	var lock sync.Mutex
	ok := 0
	for _, m := range messages {
		group.Add(1)
		called := func(_ context.Context, result *primitive.SendResult, err error) {
			defer group.Done()
			lock.Lock()
			defer lock.Unlock()
			if err == nil && result.Status == primitive.SendOK {
				ok++
			}
		}
		if err := p.SendAsync(context.Background(), called, m); err != nil {
			return ok, err
		}
	}
	group.Wait()
	return ok, nil
}

// sendOneWay has no answer to count.
func sendOneWay(p rocketmq.Producer, messages []*primitive.Message) (int, error) {
	for _, m := range messages {
		if err := p.SendOneWay(context.Background(), m); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// sendBatch sends all of them as one request.
func sendBatch(p rocketmq.Producer, messages []*primitive.Message) (int, error) {
	result, err := p.SendSync(context.Background(), messages...)
	if err != nil || result.Status != primitive.SendOK {
		return 0, err
	}
	return len(messages), nil
}

// adminScenario asks what the client's admin part can ask, and deletes a topic.
func adminScenario(c *cluster) (map[string]any, error) {
	const topic = "go_admin"
	ctx := context.Background()
	if err := c.topic(topic, 3); err != nil {
		return nil, err
	}
	tool, err := admin.NewAdmin(admin.WithResolver(c.resolver()))
	if err != nil {
		return nil, err
	}
	defer tool.Close()
	listed := func() bool {
		list, err := tool.FetchAllTopicList(ctx)
		if err != nil {
			return false
		}
		for _, name := range list.TopicList {
			if name == topic {
				return true
			}
		}
		return false
	}
	if err := await("the topic in the list", listed); err != nil {
		return nil, err
	}
	queues, err := tool.FetchPublishMessageQueues(ctx, topic)
	if err != nil {
		return nil, err
	}
	groups, err := tool.GetAllSubscriptionGroup(ctx, c.broker, patience)
	if err != nil {
		return nil, err
	}
	if err := tool.DeleteTopic(ctx, admin.WithTopicDelete(topic), admin.WithBrokerAddrDelete(c.broker), admin.WithNameSrvAddr([]string{c.namesrv})); err != nil {
		return nil, err
	}
	err = await("the topic gone from the list", func() bool { return !listed() })
	return map[string]any{"queues": len(queues), "groups": len(groups.SubscriptionGroupTable)}, err
}
