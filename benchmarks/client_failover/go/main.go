// Command ledgermq-client-failover is RocketMQ's Go client with default settings.
//
//	ledgermq-client-failover NAMESRV TOPIC GROUP produce|consume|orderly RATE
//
// Lines: "A n us" acknowledged, "F n us why" failed, "G n sent_us us queue offset" delivered; times since the epoch.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var out sync.Mutex

func say(format string, values ...any) {
	line := fmt.Sprintf(format, values...)
	out.Lock()
	defer out.Unlock()
	fmt.Println(line)
}

func now() int64 { return time.Now().UnixMicro() }

func main() {
	rlog.SetLogLevel("fatal")
	namesrv, topic, group, role := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	resolver := primitive.NewPassthroughResolver(strings.Split(namesrv, ";"))
	instance := fmt.Sprint(group, "-", os.Getpid())
	if role == "produce" {
		rate, err := strconv.Atoi(os.Args[5])
		check(err)
		p, err := rocketmq.NewProducer(producer.WithNsResolver(resolver), producer.WithGroupName(group), producer.WithInstanceName(instance))
		check(err)
		check(p.Start())
		ticks := time.NewTicker(time.Second / time.Duration(rate))
		for n := 0; ; n++ {
			<-ticks.C
			go send(p, topic, n)
		}
	}
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(resolver), consumer.WithGroupName(group), consumer.WithInstance(instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumerOrder(role == "orderly"))
	check(err)
	check(c.Subscribe(topic, consumer.MessageSelector{}, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			say("G %s %d %s/%d %d", m.Body, now(), m.Queue.BrokerName, m.Queue.QueueId, m.QueueOffset)
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	select {}
}

func send(p rocketmq.Producer, topic string, n int) {
	result, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte(fmt.Sprint(n, " ", now()))))
	switch {
	case err != nil:
		say("F %d %d %s", n, now(), strings.ReplaceAll(err.Error(), "\n", " "))
	case result.Status != primitive.SendOK:
		say("F %d %d status %d", n, now(), result.Status)
	default:
		say("A %d %d", n, now())
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
