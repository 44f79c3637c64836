package llmcache

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/redistest"
)

// M5, M6 and their kind: whatever differs makes another call.
func TestKeysDiffer(t *testing.T) {
	t.Parallel()
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	requests := []Request{
		{},
		{Provider: "a", Path: "b"}, {Provider: "ab"}, {Path: "ab"}, {Model: "ab"}, {Task: "ab"}, {System: "ab"},
		{System: "ab", Stream: true},
		{Provider: "a|b", Path: "c"}, {Provider: "a", Path: "b|c"},
		{Messages: "ab"}, {Tools: "ab"}, {Params: "ab"}, {Extra: "ab"},
		{Params: map[string]any{"max_tokens": 16}}, {Params: map[string]any{"max_tokens": 4000}},
		{Params: map[string]any{"max_tokens": "16"}},
		{Params: map[string]any{"max_tokens": 16, "unknown": nil}}, {Params: map[string]any{"max_tokens": 16, "unknown": 0}},
		{Params: raw(`{"seed":9007199254740993}`)}, {Params: raw(`{"seed":9007199254740992}`)},
		{Messages: []string{"a", "b"}}, {Messages: []string{"a\",\"b"}}, {Messages: []any{[]string{"a"}, "b"}},
		{Messages: raw(`"\ud83d"`)}, {Messages: raw(`"\ufffd"`)},
	}
	seen := map[[32]byte]int{}
	for i, r := range requests {
		h, err := r.hash()
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if j, ok := seen[h]; ok {
			t.Errorf("requests %d and %d have one key", j, i)
		}
		seen[h] = i
	}
	same := []Request{
		{Params: map[string]any{"a": 1, "b": 1e3}},
		{Params: raw(` {"b":1000.0, "a" : 1 } `)},
	}
	a, _ := same[0].hash()
	b, _ := same[1].hash()
	if a != b {
		t.Error("member order, white space or the form of numbers changed the key")
	}
}

func TestRequestWithoutKey(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	c := open(t, rdb)
	for want, r := range map[string]Request{
		"Request.Messages": {Messages: make(chan int)},
		"Request.Params":   {Params: map[string]any{"stop": "\xff"}},
		"twice":            {Extra: json.RawMessage(`{"a":1,"a":2}`)},
	} {
		_, err := Do(t.Context(), c, r, func(context.Context) (Answer[string], error) {
			t.Error("called")
			return Answer[string]{}, nil
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Do = %v, want an error with %q", err, want)
		}
	}
}
