package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// phases of every run, in order.
var phases = []string{"gather", "outline", "build", "check", "report"}

// calls are the LLM calls of a phase: two inside steps, one beside them.
var calls = []string{"first", "second", "beside"}

// runSpec is what a run is planned to be like. It travels as the run's parameters.
type runSpec struct {
	ID       string        `json:"-"`
	At       time.Duration `json:"-"` // when it is handed in
	Twice    bool          `json:"-"` // by a double click
	Stubborn bool          `json:"stubborn"`
	Work     []int         `json:"work"`            // ms, per phase
	Fault    string        `json:"fault,omitempty"` // error, panic or limited: once; fatal: for good
	Phase    string        `json:"phase,omitempty"` // where
}

type eventKind string

const (
	killWorker   eventKind = "SIGKILL worker"
	freezeShort  eventKind = "freeze below the TTL"
	freezeLong   eventKind = "freeze beyond the TTL"
	stopWorker   eventKind = "SIGTERM worker"
	killRedis    eventKind = "SIGKILL Redis"
	restartRedis eventKind = "restart Redis"
	pauseShort   eventKind = "pause Redis below the TTL"
	pauseLong    eventKind = "pause Redis beyond the TTL"
	cutLinks     eventKind = "cut all connections to Redis"
	slackDown    eventKind = "Slack is down"
)

// events are drawn like cards, so that a minute has some of each.
var events = []struct {
	kind eventKind
	n    int
}{
	{killWorker, 8}, {freezeLong, 2}, {freezeShort, 2}, {stopWorker, 2}, {killRedis, 1}, {restartRedis, 1},
	{pauseShort, 1}, {pauseLong, 1}, {cutLinks, 1}, {slackDown, 1},
}

// event is one thing that is planned to go wrong.
type event struct {
	At     time.Duration
	Kind   eventKind
	Worker int           // whose
	For    time.Duration // until it is over: started again, thawed, let go
}

// plan is what a seed decides. What a machine makes of it differs: how far a run is
// when its worker is killed.
type plan struct {
	Runs   []runSpec
	Events []event
}

func makePlan(s settings) plan {
	var p plan
	rng := rand.New(rand.NewPCG(s.seed, 1))
	for i := range s.runs {
		r := runSpec{ID: fmt.Sprintf("run-%04d", i+1), At: s.duration * time.Duration(i) / time.Duration(s.runs),
			Twice: rng.IntN(5) == 0, Stubborn: rng.IntN(3) == 0}
		for range phases {
			r.Work = append(r.Work, 20+rng.IntN(400))
		}
		if kinds := []string{"error", "panic", "limited", "fatal"}; rng.IntN(5) == 0 {
			r.Fault, r.Phase = kinds[rng.IntN(len(kinds))], phases[rng.IntN(len(phases))]
		}
		p.Runs = append(p.Runs, r)
	}
	rng = rand.New(rand.NewPCG(s.seed, 2))
	var deck []eventKind
	for _, e := range events {
		deck = append(deck, slices.Repeat([]eventKind{e.kind}, e.n)...)
	}
	between := func(low, high time.Duration) time.Duration { return low + time.Duration(rng.Int64N(int64(high-low))) }
	for at := between(2*time.Second, 4*time.Second); at < s.duration; at += between(time.Second, 4*time.Second) {
		if len(p.Events)%len(deck) == 0 {
			rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		e := event{At: at, Kind: deck[len(p.Events)%len(deck)], Worker: rng.IntN(s.workers)}
		switch e.Kind {
		case killWorker, stopWorker:
			e.For = between(0, 2*time.Second)
		case freezeLong:
			e.For = between(s.ttl*5/4, s.ttl*2)
		case pauseLong:
			e.For = between(s.ttl*5/4, s.ttl*3/2)
		case freezeShort, pauseShort:
			e.For = between(s.ttl/20, s.ttl/2)
		case killRedis, restartRedis:
			e.For = between(0, s.ttl/2)
		case slackDown:
			e.For = between(time.Second, 4*time.Second)
		}
		p.Events = append(p.Events, e)
	}
	return p
}

// fingerprint is equal for equal plans.
func (p plan) fingerprint() string {
	h := sha256.Sum256(fmt.Appendf(nil, "%+v", p))
	return hex.EncodeToString(h[:4])
}
