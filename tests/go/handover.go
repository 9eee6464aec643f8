package main

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const (
	handoverTopic  = "go_handover"
	handoverCount  = 600 // sends; the hand-over, or the death of the leader, is asked for after a third of them
	handoverQueues = 3   // of each broker name: one less than the client tries
)

// handoverScenario sends while the caller has the leader hand over, or kills it, and reads all of it. The client's route
// stays old: it polls routes every 30 s, so that it goes on sending to a node that follows by then, or is dead.
func handoverScenario(c *cluster) (map[string]any, error) {
	if err := c.topic(handoverTopic, handoverQueues); err != nil {
		return nil, err
	}
	var read sink
	reader, err := c.consume("go_handover_group", "go_handover_group", handoverTopic, read.take)
	if err != nil {
		return nil, err
	}
	defer reader.Shutdown()
	p, err := c.producer("go_handover_producer")
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	s := &stream{}
	refusals := []string{}
	last := time.Now()
	for i := 0; i < handoverCount; i++ {
		if i == handoverCount/3 {
			fmt.Println("hand over now")
		}
		body := fmt.Sprint(i)
		if _, err := p.SendSync(context.Background(), primitive.NewMessage(handoverTopic, []byte(body))); err != nil {
			s.refused++
			refusals = append(refusals, err.Error())
			continue
		}
		if gap := time.Since(last); gap > s.gap {
			s.gap = gap
		}
		last = time.Now()
		s.acknowledged = append(s.acknowledged, body)
		time.Sleep(5 * time.Millisecond)
	}
	report := s.report()
	report["refusals"] = refusals
	err = await("every acknowledged message read", func() bool {
		report["unread"] = len(s.missing(read.all()))
		return report["unread"] == 0
	})
	report["read_again"] = len(read.all()) - read.distinct()
	return report, err
}
