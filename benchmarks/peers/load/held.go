package main

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// heldRun keeps many pulls held on quiet queues while sends go to one queue of
// another topic, and reports what a send costs. Then every quiet queue gets a
// message, and every held pull must bring it.
func heldRun(o *options, ns *names) (map[string]any, error) {
	const perTopic = 100
	var topics []string
	for i := 0; i*perTopic < o.held; i++ {
		topics = append(topics, fmt.Sprintf("%s_%03d", o.topic, i))
	}
	if err := ns.ensureTopics(topics, perTopic, o.setup); err != nil {
		return nil, err
	}
	holders, err := makeHolders(o, ns, topics)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, h := range holders {
			h.conn.Close()
		}
	}()
	for _, h := range holders {
		if err := h.ask(); err != nil {
			return nil, err
		}
		go h.listen()
	}
	send := *o
	send.queues = 1
	out, err := produceRun(&send, ns, []string{o.topic + "_HOT"}, 1)
	if err != nil {
		return nil, err
	}
	early := answered(holders)
	took, err := wakeAll(o, holders)
	if err != nil {
		return nil, err
	}
	delete(out, "per_second")
	out["held_pulls"], out["answered_before"], out["woken_ms"] = o.held, early, round(took.Seconds()*1e3, 1)
	return out, nil
}

// holder keeps pulls held over one connection: one on each of its queues.
type holder struct {
	conn     net.Conn
	pulls    []*header
	sends    []*header
	body     []byte
	arrived  sync.WaitGroup
	answers  atomic.Int64
	failure  atomic.Value
	pending  []bool
	deadline time.Duration
}

func makeHolders(o *options, ns *names, topics []string) ([]*holder, error) {
	body := singleBody(minBody, newRunID()).b
	var out []*holder
	left := o.held
	for _, topic := range topics {
		ts, err := ns.route(topic)
		if err != nil {
			return nil, err
		}
		t := ts[0]
		c := newCtl(t.addr)
		defer c.close()
		conn, err := net.DialTimeout("tcp", t.addr, 3*time.Second)
		if err != nil {
			return nil, err
		}
		h := &holder{conn: conn, body: body, deadline: o.timeout}
		for q := 0; q < t.read && left > 0; q, left = q+1, left-1 {
			end, err := offsetOf(c, codeMaxOffset, topic, q)
			if err != nil {
				return nil, err
			}
			p := pullHeader(pullGroup, topic, t.name, q, 32, 2|4, 60_000, allTags, o.binary)
			p.b = p.appendTo(nil, int32(opaqueBase+q), 0, 0, end)
			h.pulls = append(h.pulls, p)
			h.sends = append(h.sends, sendHeader(topic, t.name, q, len(body), "0123456789ABCDEF", false, o.binary))
		}
		out = append(out, h)
	}
	return out, nil
}

func (h *holder) ask() error {
	var wb []byte
	for _, p := range h.pulls {
		wb = append(wb, p.b...)
	}
	h.pending = make([]bool, len(h.pulls))
	h.arrived.Add(len(h.pulls))
	_, err := h.conn.Write(wb)
	return err
}

// listen counts answers until the connection is closed. A queue at 0 answers a
// pull that finds nothing like any other: all are held.
func (h *holder) listen() {
	f := newFramer(64 << 10)
	var r reply
	for {
		ok, err := f.next(&r)
		if err == nil && !ok {
			err = f.fill(h.conn)
		}
		if err != nil {
			return
		}
		if !ok || !r.isResp || r.opaque < opaqueBase {
			continue
		}
		i := int(r.opaque - opaqueBase)
		if i >= len(h.pending) { // the answer to a send
			if r.code != 0 {
				h.failure.Store(fmt.Sprintf("a send to a quiet queue: %s: %s", codeName(r.code), r.remark()))
			}
			continue
		}
		if n, err := eachRecord(r.body, nil); r.code != 0 || err != nil || n != 1 || h.pending[i] {
			h.failure.Store(fmt.Sprintf("held pull %d: %s: %s, %d records", i, codeName(r.code), r.remark(), n))
			continue
		}
		h.pending[i] = true
		h.answers.Add(1)
		h.arrived.Done()
	}
}

func answered(holders []*holder) (n int64) {
	for _, h := range holders {
		n += h.answers.Load()
	}
	return n
}

// wakeAll sends one message to each quiet queue, a connection after the other,
// and waits for its pulls. The first message of a queue makes its files.
func wakeAll(o *options, holders []*holder) (time.Duration, error) {
	begin := time.Now()
	for _, h := range holders {
		var wb []byte
		for q, s := range h.sends {
			wb = s.appendTo(wb, int32(opaqueBase+1000+q), begin.UnixMilli(), uint64(q), 0)
			wb = append(wb, h.body...)
		}
		if _, err := h.conn.Write(wb); err != nil {
			return 0, err
		}
		done := make(chan struct{})
		go func(h *holder) { h.arrived.Wait(); close(done) }(h)
		select {
		case <-done:
		case <-time.After(o.timeout + 10*time.Second):
			e, _ := h.failure.Load().(string)
			return 0, fmt.Errorf("%d of %d held pulls were woken; %s", answered(holders), o.held, e)
		}
	}
	return time.Since(begin), nil
}
