// Command ledgermq-go-client drives a cluster with RocketMQ's released Go client and tells what it saw.
//
//	ledgermq-go-client -namesrv HOST:PORT -broker HOST:PORT SCENARIO...
//
// Every scenario has topics and groups of its own, so all of them run at once. The answer is one JSON object on the
// last line of standard output, one member a scenario; what is right about it is for the caller to judge. A scenario
// that could not finish has an "error" member. Exit status 0: all finished, 1: one did not, 2: wrong usage.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// patience bounds every wait: a scenario that sees nothing for so long gives up and tells what it has.
const patience = 180 * time.Second

// scenario does its work on a cluster and returns what it saw, ready for JSON.
type scenario func(*cluster) (map[string]any, error)

var scenarios = map[string]scenario{
	"admin":       adminScenario,
	"broadcast":   broadcastScenario,
	"delay":       delayScenario,
	"failover":    failoverScenario,
	"handover":    handoverScenario,
	"orderly":     orderlyScenario,
	"send":        sendScenario,
	"share":       shareScenario,
	"transaction": transactionScenario,
}

func main() {
	namesrv := flag.String("namesrv", "", "address of the nameserver")
	broker := flag.String("broker", "", "address of the broker that takes writes: topics are made there")
	flag.Parse()
	if *namesrv == "" || *broker == "" || flag.NArg() == 0 {
		fail(2, "usage: ledgermq-go-client -namesrv HOST:PORT -broker HOST:PORT SCENARIO...; scenarios: "+names())
	}
	rlog.SetLogLevel("fatal")
	seen, whole := runAll(&cluster{namesrv: *namesrv, broker: *broker}, flag.Args())
	line, err := json.Marshal(seen)
	if err != nil {
		fail(1, err.Error())
	}
	fmt.Println(string(line))
	if !whole {
		os.Exit(1)
	}
}

// runAll runs the named scenarios side by side; whole is false when one did not finish.
func runAll(c *cluster, chosen []string) (seen map[string]any, whole bool) {
	seen, whole = map[string]any{}, true
	var lock sync.Mutex
	var group sync.WaitGroup
	for _, name := range chosen {
		run, known := scenarios[name]
		if !known {
			fail(2, "no scenario "+name+"; there are: "+names())
		}
		group.Add(1)
		go func(name string) {
			defer group.Done()
			began := time.Now()
			report, err := run(c)
			if report == nil {
				report = map[string]any{}
			}
			report["seconds"] = time.Since(began).Seconds()
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				report["error"] = err.Error()
				whole = false
			}
			seen[name] = report
		}(name)
	}
	group.Wait()
	return seen, whole
}

func names() string {
	all := make([]string, 0, len(scenarios))
	for name := range scenarios {
		all = append(all, name)
	}
	sort.Strings(all)
	return strings.Join(all, ", ")
}

func fail(status int, why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(status)
}
