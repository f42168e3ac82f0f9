package simulation

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/contracts"
	"github.com/counterfoil/counterfoil/internal/contract"
)

// config is what a seed means: the provider, the processes and how often what
// goes wrong. Most faults are off in most runs, so that each is also seen
// alone.
type config struct {
	Seed     uint64
	Many     bool // 5 to 20 operations instead of one
	Plain    bool // no faults, a provider that succeeds
	Contract string
	Variant  string

	Cluster    bool // several processes with clocks of their own; nothing proves anybody gone
	Local      bool // each process that projects also attends, by what it knows
	Pollers    int
	Projectors int
	Difference time.Duration // allowed between clocks

	Ops      int
	Faults   time.Duration // length of the time with faults
	Webhooks bool
	Cancels  float64
	Decides  bool

	// Of the provider.
	Dedupes, NamesFirst, Once, GoneConfirms, Partial, NoResult, Strict, NoRepeatCancel bool
	Window, Held, Late                                                                 time.Duration

	// Of accounts and operators.
	Rotations int // changes of the credential, of which some are undone
	Holds     int
	HoldAll   bool
	Pauses    float64

	// Of the provider's calls before a create, and of its list.
	Upload, Newest bool
	Turns          int // changes of the credential right behind an upload
	Page, Foreign  int // jobs on a page (0: half the list), older jobs of others

	// Of jobs that wait for an answer, and of what they leave.
	Asks, Cleans           float64
	OnceInput, OnceCleanup bool

	// Of the caller.
	Timeout, Interval, Create, Result, Cancel, Collect time.Duration
	Attempts                                           uint64

	// Chances.
	Stop, Crash, Store                           float64
	Dial, LateRequest, LoseRequest, DropAnswer   float64
	BadAnswer, SlowAnswer, Throttle, Unavailable float64
	Refuse, NotFound, Identity                   float64
}

func (c config) String() string {
	text, _ := json.Marshal(c) // numbers, words and flags
	return string(text)
}

// configure draws a configuration. The same seed gives the same one.
func configure(seed uint64, many, plain bool) config {
	r := rand.New(rand.NewPCG(seed, 0x636f6e66))
	c := config{Seed: seed, Many: many, Plain: plain}
	half := func() bool { return r.IntN(2) == 0 }
	one := func(n int) bool { return r.IntN(n) == 0 }
	choose := func(list ...float64) float64 { return list[r.IntN(len(list))] }
	span := func(list ...time.Duration) time.Duration { return list[r.IntN(len(list))] }

	kinds := []string{"example", "example", "example-lookup", "example-lookup", "example-ask", "replicate", "example-names", "example-both"}
	c.Contract = kinds[r.IntN(len(kinds))]
	c.Dedupes = c.Contract == "example" || c.Contract == "example-names" || c.Contract == "example-both"
	c.NamesFirst = c.Contract == "example-names"
	c.Held = span(0, 5*time.Second, 20*time.Second)
	if c.Contract == "example-lookup" || c.Contract == "example-both" {
		c.Late = 5 * time.Second
	}
	if c.Dedupes && one(3) {
		c.Window = span(3*time.Minute, 6*time.Minute)
	}
	if c.Contract != "replicate" && one(6) {
		c.Once = true
	}
	c.GoneConfirms, c.Partial, c.NoResult = one(4), one(6), one(8)
	c.Strict, c.NoRepeatCancel = one(6), one(4)

	c.Cluster = half()
	c.Pollers, c.Projectors = 2+r.IntN(2), 1
	if c.Cluster {
		c.Projectors = 1 + r.IntN(2)
		c.Difference = span(2*time.Second, 30*time.Second)
	}
	c.Ops = 1
	if many {
		c.Ops = 5 + r.IntN(16)
	}
	c.Faults = span(30*time.Second, 2*time.Minute, 6*time.Minute)
	c.Webhooks = half()
	c.Cancels = choose(0, 0, 0.3, 0.7)
	c.Decides = one(3)

	c.Timeout = span(5*time.Second, 15*time.Second, 30*time.Second)
	c.Interval = span(4*time.Second, 10*time.Second, 20*time.Second)
	c.Create, c.Result = span(2*time.Minute, 8*time.Minute), span(5*time.Minute, 12*time.Minute)
	c.Cancel, c.Collect = span(time.Minute, 4*time.Minute), span(time.Minute, 4*time.Minute)
	c.Attempts = uint64(1 + r.IntN(6))

	c.Stop = choose(0, 0, 0.001, 0.004, 0.02)
	c.Crash = choose(0, 0, 0.0005, 0.002, 0.006)
	c.Store = choose(0, 0, 0.01, 0.05, 0.15)
	c.Dial = choose(0, 0, 0.1, 0.4)
	c.LateRequest = choose(0, 0, 0.2, 0.6)
	c.LoseRequest = choose(0, 0, 0.05, 0.3)
	c.DropAnswer = choose(0, 0.1, 0.3, 0.7)
	c.BadAnswer = choose(0, 0, 0.1, 0.3)
	c.SlowAnswer = choose(0, 0, 0.1, 0.4)
	c.Throttle = choose(0, 0, 0, 0.1)
	c.Unavailable = choose(0, 0, 0.1, 0.3)
	c.Refuse = choose(0, 0, 0, 0.2)
	c.NotFound = choose(0, 0, 0.05, 0.2)
	c.Identity = choose(0, 0, 0, 1)
	c.edges(rand.New(rand.NewPCG(seed, 0x65646765)))
	if r := rand.New(rand.NewPCG(seed, 0x7475726e)); c.Upload && r.IntN(2) == 0 { // later still
		c.Turns = 1 + r.IntN(4)
	}
	c.Local = rand.New(rand.NewPCG(seed, 0x6c6f63616c)).IntN(5) < 2
	c.further(rand.New(rand.NewPCG(seed, 0x667572)))
	if plain {
		c.Cancels, c.Decides, c.Asks = 0, false, 0
		c.Create, c.Result, c.Collect = 8*time.Minute, 12*time.Minute, 4*time.Minute
	}
	return c
}

// further draws inputs and cleanups, which the contracts made of example have.
func (c *config) further(r *rand.Rand) {
	if !c.Dedupes {
		return
	}
	c.Asks = []float64{0, 0, 0.5, 1}[r.IntN(4)]
	c.Cleans = []float64{0, 0, 0.5, 1}[r.IntN(4)]
	c.OnceInput, c.OnceCleanup = r.IntN(2) == 0, r.IntN(2) == 0
}

// edges draws what was added later, from a source of its own, so that a seed
// keeps the rest of its meaning.
func (c *config) edges(r *rand.Rand) {
	one := func(n int) bool { return r.IntN(n) == 0 }
	if one(3) {
		c.Rotations = 1 + r.IntN(4)
	}
	if one(3) {
		c.Holds, c.HoldAll = 1+r.IntN(3), one(2)
	}
	if one(5) {
		c.Pauses = 0.3
	}
	c.Upload = c.Contract != "replicate" && one(4)
	if c.Contract == "example-lookup" || c.Contract == "example-both" || c.Contract == "replicate" {
		c.Newest = one(2)
		c.Page = []int{0, 1, 2, 3}[r.IntN(4)]
		c.Foreign = []int{0, 0, 1, 4}[r.IntN(4)]
	}
}

// variant names the contract of the run in the library.
func (c *config) variant() string {
	name := c.Contract
	for _, v := range []struct {
		on   bool
		name string
	}{{c.Once, " once"}, {c.Newest, " newest"}, {c.Upload, " upload"}} {
		if v.on {
			name += v.name
		}
	}
	return name
}

// library parses the built-in contracts, and some changed in one word, once.
var library = sync.OnceValues(func() (map[string]*contract.Contract, error) { //nolint:gochecknoglobals // a cache of constants
	out := map[string]*contract.Contract{}
	read := func(name string) (string, error) {
		text, err := fs.ReadFile(contracts.FS, name+".yaml")
		return string(text), err
	}
	replace := func(text, old, new string) (string, error) {
		if strings.Count(text, old) < 1 {
			return "", fmt.Errorf("the contract has no %q any more", old)
		}
		return strings.Replace(text, old, new, 1), nil
	}
	add := func(key, text string) error {
		c, err := contract.Parse(key+".yaml", []byte(text))
		if err != nil {
			return err
		}
		out[key] = c
		return nil
	}
	texts := map[string]string{}
	for _, name := range []string{"example", "example-lookup", "example-ask", "replicate"} {
		text, err := read(name)
		if err != nil {
			return nil, err
		}
		texts[name] = text
	}
	names, err := replace(texts["example"], "second_create: returns_first", "second_create: names_first")
	if err != nil {
		return nil, err
	}
	if texts["example-names"], err = replace(names, "name: example\n", "name: example-names\n"); err != nil {
		return nil, err
	}
	from := strings.Index(texts["example-lookup"], "\nlookup:\n")
	to := strings.Index(texts["example-lookup"], "\ncancel:\n")
	if from < 0 || to < from {
		return nil, fmt.Errorf("example-lookup has no look-up section")
	}
	both, err := replace(texts["example"], "\ncancel:\n", texts["example-lookup"][from:to]+"\ncancel:\n")
	if err != nil {
		return nil, err
	}
	if texts["example-both"], err = replace(both, "name: example\n", "name: example-both\n"); err != nil {
		return nil, err
	}
	for name, text := range texts {
		for _, c := range []config{{}, {Once: true}, {Newest: true}, {Once: true, Newest: true}} {
			for _, c.Upload = range []bool{false, true} {
				c.Contract = name
				changed, err := change(text, c)
				if err != nil {
					return nil, err
				}
				if changed == "" {
					continue
				}
				if err := add(c.variant(), changed); err != nil {
					return nil, err
				}
			}
		}
	}
	return out, nil
})

// change gives the contract's text with what the configuration asks for, or
// nothing where the contract has no such thing.
func change(text string, c config) (string, error) {
	_, looks, _ := strings.Cut(text, "\nlookup:\n")
	if c.Newest && looks == "" || (c.Once || c.Upload) && c.Contract == "replicate" {
		return "", nil
	}
	for _, r := range []struct {
		on       bool
		old, new string
	}{
		{c.Once, "\nresult:\n  from: request\n  path: /v1/jobs/{job.id}/result\n  repeat: safe\n", "\nresult:\n  from: request\n  path: /v1/jobs/{job.id}/result\n  repeat: once\n"},
		{c.Newest, "\nlookup:\n", "\nlookup:\n  order: newest_first\n"},
		{c.Upload, "\ncreate:\n", `
create:
  prepare:
    - name: upload
      repeat: safe
      path: /v1/files
      body: params
      read:
        done: status == 201
        rejected: status == 422
        values:
          file: body.?id
  query:
    input: "{prepared.file}"
`},
	} {
		if !r.on {
			continue
		}
		if strings.Count(text, r.old) != 1 {
			return "", fmt.Errorf("the contract %s has not one %q any more", c.Contract, r.old)
		}
		text = strings.Replace(text, r.old, r.new, 1)
	}
	return text, nil
}
