package llmcache

import (
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/redistest"
	"github.com/nexuscore/onceq/internal/scope"
)

// A changed key is a data migration: what is stored is not found any more, and
// paid again.
func TestGoldenCallKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		req  Request
		want string
	}{
		{Request{}, "a64b0bb4b2dc2b37164e255df0584ca1bc99738adb3083a2378ff6b338d291fc"},
		{Request{
			Provider: "openai", Path: "/v1/chat/completions", Model: "gpt-x", Task: "plan v2", System: "be brief",
			Messages: []map[string]string{{"role": "user", "content": "größe <b>"}},
			Tools:    json.RawMessage(`[{"name":"f","strict":true}]`),
			Params:   map[string]any{"temperature": 0.7, "max_tokens": 100, "seed": int64(9007199254740993)},
			Extra:    map[string]any{"user": nil}, Stream: true,
		}, "a812426cc17ada6f1175d8557511d2f8228546f66bfd9e9a0f101254cd3b9d3b"},
	} {
		h, err := c.req.hash()
		if got := hex.EncodeToString(h[:]); err != nil || got != c.want {
			t.Errorf("key of %+v = %s, %v; want %s", c.req, got, err, c.want)
		}
	}
}

func TestGoldenRedisKeys(t *testing.T) {
	t.Parallel()
	hash := [32]byte{0xab, 31: 0xcd}
	ctx, l := attempt(t, t.Context(), "orchestrator-run-42", "planning")
	at, _ := scope.FromContext(ctx)
	run := runSlot(l, at, "acme", "a", hash, 1)
	shared := sharedSlot("onceq", "a:b{c}", hash)
	for _, c := range []struct{ got, want string }{
		{run.Key, "onceq:{orchestrator-run-42}:llm:e8c6f583a8f3e0e18a630dc443e29a65facd7d9cd51b66497ae9bd22120e1fa5"},
		{run.Book, "onceq:{orchestrator-run-42}:llm"},
		{run.flights(), "onceq:{orchestrator-run-42}:llm:flights"},
		{run.lease(), run.Key + ":lease"},
		{run.once("o"), run.Key + ":once:o"},
		{shared.Key, "onceq:llm:{ab000000000000000000000000000000000000000000000000000000000000cd}:t:a%3Ab%7Bc%7D"},
		{shared.flights(), shared.Key + ":flights"},
		{totalKey("onceq"), "onceq:llm:{total}"},
	} {
		if c.got != c.want {
			t.Errorf("key %s, want %s", c.got, c.want)
		}
	}
}

// What is in Redis has a TTL, and is what the golden tests say.
func TestKeysInRedis(t *testing.T) {
	t.Parallel()
	m, rdb := redistest.Mini(t)
	c := open(t, rdb)
	var llm model
	ctx, _ := attempt(t, t.Context(), "run", "p")
	do(t, ctx, c, &llm)
	do(t, With(ctx, Scope(SharedScope), Tenant("acme")), c, &llm)
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, k := range m.Keys() {
		if m.TTL(k) <= 0 {
			t.Errorf("%s has no TTL", k)
		}
		for _, part := range strings.FieldsFunc(k, func(r rune) bool { return r == ':' || r == '{' || r == '}' }) {
			if len(part) > 24 {
				k = strings.Replace(k, part, "*", 1)
			}
		}
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds) // the ledger may have been written in two goes
	want := []string{
		"onceq:llm:{*}:t:acme", "onceq:llm:{total}", "onceq:llm:{total}:once:*",
		"onceq:{run}:llm", "onceq:{run}:llm:*", "onceq:{run}:llm:once:*",
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("keys\n%s\nwant\n%s", strings.Join(kinds, "\n"), strings.Join(want, "\n"))
	}
}
