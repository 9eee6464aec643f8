package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const invisibleMs = "120000"

func popHeader(group, topic string, queue, max, pollMs int, bin bool) *header {
	return newHeader(codePop, []kv{{"consumerGroup", group}, {"topic", topic}, {"queueId", strconv.Itoa(queue)},
		{"maxMsgNums", strconv.Itoa(max)}, {"invisibleTime", invisibleMs}, {"pollTime", strconv.Itoa(pollMs)},
		{"bornTime", markBorn}, {"initMode", "0"}, {"expType", "TAG"}, {"exp", "*"}, {"order", "false"}}, 0, bin)
}

// popped is what one answer brought: handles by queue, and the messages' places.
type popped struct {
	popTime, invisible, revive string
	starts                     map[int]string
	places                     []place
}

type place struct {
	queue  int
	offset int64
	body   []byte
}

func readPopped(r *reply, p *popped) error {
	p.popTime, _ = r.ext("popTime")
	p.invisible, _ = r.ext("invisibleTime")
	p.revive, _ = r.ext("reviveQid")
	starts, _ := r.ext("startOffsetInfo")
	p.starts = map[int]string{}
	for _, s := range strings.Split(starts, ";") {
		f := strings.Fields(s)
		if len(f) != 3 || f[0] != "0" {
			return fmt.Errorf("startOffsetInfo %q is not of the topic itself", starts)
		}
		q, err := strconv.Atoi(f[1])
		if err != nil {
			return fmt.Errorf("startOffsetInfo %q: %w", starts, err)
		}
		p.starts[q] = f[2]
	}
	p.places = p.places[:0]
	b := r.body
	_, err := eachRecord(b, func(offset int64, body []byte) {
		p.places = append(p.places, place{int(binary.BigEndian.Uint32(b[12:])), offset, body})
		b = b[binary.BigEndian.Uint32(b):]
	})
	return err
}

// acker writes acknowledgements, one request a message or one a pop.
type acker struct {
	group, topic, broker string
	batch                bool
}

// add appends the requests for what was popped to w; answers how many.
func (a *acker) add(w []byte, p *popped, opaque func() int32) ([]byte, int) {
	if a.batch {
		return a.addBatch(w, p, opaque()), 1
	}
	for _, m := range p.places {
		extra := p.starts[m.queue] + " " + p.popTime + " " + p.invisible + " " + p.revive + " 0 " + a.broker + " " +
			strconv.Itoa(m.queue) + " " + strconv.FormatInt(m.offset, 10)
		w = appendRequest(w, codeAck, opaque(), []kv{{"consumerGroup", a.group}, {"topic", a.topic},
			{"queueId", strconv.Itoa(m.queue)}, {"extraInfo", extra}, {"offset", strconv.FormatInt(m.offset, 10)}}, nil)
	}
	return w, len(p.places)
}

func (a *acker) addBatch(w []byte, p *popped, opaque int32) []byte {
	type entry struct {
		C  string `json:"c"`
		T  string `json:"t"`
		R  string `json:"r"`
		SO int64  `json:"so"`
		Q  int    `json:"q"`
		RQ int    `json:"rq"`
		PT int64  `json:"pt"`
		IT int64  `json:"it"`
		B  string `json:"b"`
	}
	number := func(s string) int64 { v, _ := strconv.ParseInt(s, 10, 64); return v }
	bits := map[int][]byte{}
	for _, m := range p.places {
		i := m.offset - number(p.starts[m.queue])
		for int64(len(bits[m.queue])*8) <= i {
			bits[m.queue] = append(bits[m.queue], 0)
		}
		bits[m.queue][i/8] |= 1 << (i % 8)
	}
	var acks []entry
	for q, b := range bits {
		acks = append(acks, entry{a.group, a.topic, "0", number(p.starts[q]), q, int(number(p.revive)), number(p.popTime),
			number(p.invisible), base64.StdEncoding.EncodeToString(b)})
	}
	body, _ := json.Marshal(map[string]any{"brokerName": a.broker, "acks": acks})
	return appendRequest(w, codeBatchAck, opaque, nil, body)
}

// appendRequest writes one whole frame with a JSON header; the values need no quoting.
func appendRequest(w []byte, code int, opaque int32, ext []kv, body []byte) []byte {
	at := len(w)
	w = append(w, 0, 0, 0, 0, 0, 0, 0, 0)
	w = append(w, `{"code":`...)
	w = strconv.AppendInt(w, int64(code), 10)
	w = append(w, `,"extFields":{`...)
	for i, x := range ext {
		if i > 0 {
			w = append(w, ',')
		}
		w = append(append(append(append(append(w, '"'), x.k...), `":"`...), x.v...), '"')
	}
	w = append(w, `},"flag":0,"language":"GO","opaque":`...)
	w = strconv.AppendInt(w, int64(opaque), 10)
	w = append(w, `,"serializeTypeCurrentRPC":"JSON","version":`...)
	w = strconv.AppendInt(w, protoVersion, 10)
	w = append(w, '}')
	binary.BigEndian.PutUint32(w[at:], uint32(len(w)-at-4+len(body)))
	binary.BigEndian.PutUint32(w[at+4:], uint32(len(w)-at-8))
	return append(w, body...)
}

// popper is one consumer: a pop in flight, its acknowledgements written with
// the next one.
type popper struct {
	a      acker
	addr   string
	seen   func(queue int, offset int64) bool
	taken  *atomic.Int64
	want   int64
	pops   uint64
	msgs   uint64
	acks   uint64
	twice  uint64
	errs   map[int]uint64
	lat    hist
	ackLat hist
}

func (p *popper) run(o *options) error {
	c, err := net.DialTimeout("tcp", p.addr, 3*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	h := popHeader(p.a.group, p.a.topic, -1, o.pull, 200, o.binary)
	f := newFramer(1 << 20)
	op, popOp, inFly := int32(opaqueBase), int32(0), 0
	next := func() int32 { op++; return op }
	var wb []byte
	var r reply
	var got popped
	var popAt, ackAt time.Time
	pop := func() {
		popAt, popOp = time.Now(), next()
		wb = h.appendTo(wb, popOp, popAt.UnixMilli(), 0, 0)
	}
	for pop(); popOp != 0 || inFly > 0; {
		if len(wb) > 0 {
			if _, err := c.Write(wb); err != nil {
				return err
			}
			wb = wb[:0]
		}
		_ = c.SetReadDeadline(time.Now().Add(o.timeout))
		if err := f.fill(c); err != nil {
			return err
		}
		for {
			ok, err := f.next(&r)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			if !r.isResp || r.opaque < opaqueBase {
				continue
			}
			now := time.Now()
			if r.opaque != popOp {
				if inFly--; r.code != 0 {
					p.errs[r.code]++
				}
				p.acks++
				p.ackLat.add(int64(now.Sub(ackAt)))
				continue
			}
			popOp = 0
			if r.code == 0 {
				p.pops++
				p.lat.add(int64(now.Sub(popAt)))
				if err := readPopped(&r, &got); err != nil {
					return err
				}
				for _, m := range got.places {
					if !p.seen(m.queue, m.offset) {
						p.twice++
					}
				}
				p.msgs += uint64(len(got.places))
				p.taken.Add(int64(len(got.places)))
				n := 0
				wb, n = p.a.add(wb, &got, next)
				inFly, ackAt = inFly+n, now
			} else if r.code != 210 && r.code != 209 && r.code != 19 {
				p.errs[r.code]++
				if p.errs[r.code] > 100 {
					return fmt.Errorf("pop refused: %s: %s", codeName(r.code), r.remark())
				}
			}
			if p.taken.Load() < p.want {
				pop()
			}
		}
	}
	return nil
}

// popPass lets a new group take and acknowledge everything once.
func popPass(o *options, qs []queueRange, total int64, group string) (map[string]any, error) {
	seen := map[int][]atomic.Bool{}
	for _, q := range qs {
		seen[q.queue] = make([]atomic.Bool, q.max)
	}
	var taken atomic.Int64
	var ps []*popper
	t := qs[0].target
	for i := 0; i < o.connections; i++ {
		ps = append(ps, &popper{a: acker{group, o.topic, t.name, o.batchAck}, addr: t.addr, taken: &taken, want: total,
			errs: map[int]uint64{}, seen: func(q int, offset int64) bool {
				return q >= 0 && q < len(qs) && offset < int64(len(seen[q])) && !seen[q][offset].Swap(true)
			}})
	}
	u0, g0, t0 := measure(o.pids), measure([]int{os.Getpid()}), time.Now()
	var wg sync.WaitGroup
	errs := make([]error, len(ps))
	for i, p := range ps {
		wg.Add(1)
		go func(i int, p *popper) { defer wg.Done(); errs[i] = p.run(o) }(i, p)
	}
	wg.Wait()
	took := time.Since(t0).Seconds()
	u1, g1 := measure(o.pids), measure([]int{os.Getpid()})
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	lat, ackLat, codes := &hist{}, &hist{}, map[int]uint64{}
	var pops, msgs, acks, twice uint64
	for _, p := range ps {
		lat.merge(&p.lat)
		ackLat.merge(&p.ackLat)
		pops, msgs, acks, twice = pops+p.pops, msgs+p.msgs, acks+p.acks, twice+p.twice
		for c, n := range p.errs {
			codes[c] += n
		}
	}
	if twice != 0 || msgs != uint64(total) {
		return nil, fmt.Errorf("%d messages were taken of %d, %d of them again", msgs, total, twice)
	}
	out := map[string]any{
		"held": total, "connections": o.connections, "seconds": round(took, 3), "messages": msgs,
		"msgs_per_s": round(float64(msgs)/took, 1), "pops": pops, "ack_requests": acks,
		"msgs_per_pop": round(float64(msgs)/float64(max(pops, 1)), 2), "latency_ms": lat.report(),
		"ack_ms": ackLat.report(), "errors": errorReport(codes), "generator": costReport(g0, g1, msgs, took),
	}
	if len(o.pids) > 0 {
		out["server"] = costReport(u0, u1, msgs, took)
	}
	return out, nil
}

// popRun takes a topic --passes times, each by a group of its own; the last
// pass is reported, the others warm the server up.
func popRun(o *options, ns *names) (map[string]any, error) {
	if err := ns.ensureTopics([]string{o.topic}, o.queues, o.setup); err != nil {
		return nil, err
	}
	if err := fillTopic(o, ns); err != nil {
		return nil, err
	}
	qs, total, err := queueRanges(ns, o.topic)
	if err != nil {
		return nil, err
	}
	for _, q := range qs {
		if q.target.addr != qs[0].target.addr {
			return nil, errors.New("pop runs against one master")
		}
	}
	var out map[string]any
	for i := 0; i < o.passes; i++ {
		if out, err = popPass(o, qs, total, fmt.Sprintf("PEERS_POP_%d_%d", newRunID(), i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// popArrivals is pullArrivals by held pops of queue 0; each message is acknowledged.
func popArrivals(o *options, t target, c net.Conn, runID uint64, arrived chan<- arrival) error {
	a := acker{fmt.Sprintf("PEERS_POP_%d", runID), o.topic, t.name, false}
	h := popHeader(a.group, o.topic, 0, 32, 15000, o.binary)
	f := newFramer(256 << 10)
	var wb []byte
	var r reply
	var got popped
	op := int32(opaqueBase)
	next := func() int32 { op++; return op }
	for {
		pop := next()
		wb = h.appendTo(wb, pop, time.Now().UnixMilli(), 0, 0)
		if err := exchange(c, f, wb, pop, &r); err != nil {
			return err
		}
		now := time.Now()
		wb = wb[:0]
		switch r.code {
		case 0:
			if err := readPopped(&r, &got); err != nil {
				return err
			}
			for _, m := range got.places {
				tell(runID, m.body, now, arrived)
			}
			wb, _ = a.add(wb, &got, next)
		case 19, 209, 210:
		default:
			return fmt.Errorf("pop refused: %s: %s", codeName(r.code), r.remark())
		}
	}
}
