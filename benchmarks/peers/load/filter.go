package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Of the messages of a filter's topic every tenth is wanted: tags T0 to T9 in
// turn, and the properties a (0 to 9) and region.
const wantedEvery = 10

var (
	filterByTag   = filter{"TAG", "T9"}
	filterBySQL   = filter{"SQL92", "a > 8 AND region = 'eu'"}
	filterNothing = filter{"SQL92", "a > 8 AND region = 'nowhere'"}
)

// filterProperties are those of message i of a batch.
func filterProperties(i int) string {
	k := i % wantedEvery
	return fmt.Sprintf("TAGS\x01T%d\x02a\x01%d\x02region\x01eu\x02", k, k)
}

var wantedNeedle = []byte("\x02a\x019\x02")

func fillFiltered(o *options, ns *names) error {
	if o.batch%wantedEvery != 0 {
		return fmt.Errorf("--batch must be a multiple of %d", wantedEvery)
	}
	o.properties = filterProperties
	if err := ns.ensureTopics([]string{o.topic}, o.queues, o.setup); err != nil {
		return err
	}
	return fillTopic(o, ns)
}

// filterRun reads a topic through a filter. The first pass of each queue is
// checked: nothing but what is wanted, and all of it.
func filterRun(o *options, ns *names, want filter) (map[string]any, error) {
	if err := fillFiltered(o, ns); err != nil {
		return nil, err
	}
	out, err := readQueues(o, ns, want, wantedNeedle)
	if err != nil {
		return nil, err
	}
	first := out["first_pass"].(map[string]any)
	if !first["whole"].(bool) {
		return nil, errors.New("no queue was read to its end: fewer --count, or more --seconds")
	}
	if n := out["held"].(int64) / wantedEvery; first["messages"].(uint64) != uint64(n) {
		return nil, fmt.Errorf("the first pass brought %v messages, %d are wanted of %v", first["messages"], n, out["held"])
	}
	return out, nil
}

// scanRun is pingpong beside consumers whose filter matches nothing of a long
// backlog: what they cost everybody else.
func scanRun(o *options, ns *names) (map[string]any, error) {
	fill := *o
	fill.topic += "_LOG"
	if err := fillFiltered(&fill, ns); err != nil {
		return nil, err
	}
	qs, total, err := queueRanges(ns, fill.topic)
	if err != nil {
		return nil, err
	}
	fill.connections = o.scanners
	rds := makeReaders(&fill, qs, filterNothing, nil, 1<<30)
	var stop atomic.Bool
	done := make(chan error, 1)
	begin := time.Now()
	go func() { done <- runReaders(rds, &fill, &stop) }()
	out, err := pingpong(o, ns)
	stop.Store(true)
	if scanErr := <-done; scanErr != nil && err == nil {
		err = scanErr
	}
	if err != nil {
		return nil, err
	}
	sum := addUp(rds)
	if sum.msgs != 0 {
		return nil, fmt.Errorf("%d messages came through a filter that matches none", sum.msgs)
	}
	out["held"] = total
	out["scanners"] = len(rds)
	out["scanned"] = sum.seen
	out["scanned_per_s"] = round(float64(sum.seen)/time.Since(begin).Seconds(), 1)
	out["scan_ms"] = sum.lat.report()
	return out, nil
}
