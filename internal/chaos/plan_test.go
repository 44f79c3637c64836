package main

import (
	"testing"
	"time"
)

func TestPlanIsTheSeeds(t *testing.T) {
	s := settings{seed: 7, duration: 3 * time.Minute, runs: 300, workers: 4, ttl: 4 * time.Second}
	if a, b := makePlan(s).fingerprint(), makePlan(s).fingerprint(); a != b {
		t.Errorf("one seed, two plans: %s, %s", a, b)
	}
	other := s
	other.seed = 8
	if makePlan(s).fingerprint() == makePlan(other).fingerprint() {
		t.Error("two seeds, one plan")
	}
	kinds := map[eventKind]int{}
	for _, e := range makePlan(s).Events {
		kinds[e.Kind]++
	}
	for _, e := range events {
		if kinds[e.kind] < 2 {
			t.Errorf("three minutes with %q %d times: %v", e.kind, kinds[e.kind], kinds)
		}
	}
}
