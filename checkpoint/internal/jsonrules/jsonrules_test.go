package jsonrules

import (
	"encoding/json"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"testing"
	"time"
)

type plain struct{ A int }

type hidden struct{ B int }

type number int

type outer struct {
	plain
	*hidden
	number
	Number   number
	Renamed  int `json:"other,omitempty"`
	Out      int `json:"-"`
	Struct   hidden
	private  hidden
	Embedded `json:"named"`
}

type Embedded struct{ C int }

// What encoding/json itself does with the type is what is expected.
func TestFields(t *testing.T) {
	var got []string
	for f := range reflect.TypeFor[outer]().Fields() {
		if Skipped(f) {
			continue
		}
		name := FieldName(f)
		if name != "" {
			got = append(got, name)
			continue
		}
		for inner := range deref(f.Type).Fields() {
			got = append(got, FieldName(inner))
		}
	}
	b, err := json.Marshal(outer{hidden: &hidden{}, number: 1, private: hidden{2}, Renamed: 1})
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(b, &keys); err != nil {
		t.Fatal(err)
	}
	if g, w := slices.Sorted(slices.Values(got)), slices.Sorted(maps.Keys(keys)); !slices.Equal(g, w) {
		t.Errorf("fields %q, want %q", g, w)
	}
	// Embedded, but one value to encoding/json.
	if f := reflect.TypeFor[struct{ time.Time }]().Field(0); FieldName(f) != "Time" {
		t.Errorf("embedded time is called %q, want Time", FieldName(f))
	}
}

func TestMarshalsItself(t *testing.T) {
	for _, c := range []struct {
		v    any
		want bool
	}{
		{time.Time{}, true}, {&time.Time{}, true}, {big.Int{}, true}, {json.RawMessage{}, true},
		{plain{}, false}, {number(1), false}, {outer{}, false}, {struct{ time.Time }{}, true},
	} {
		if got := MarshalsItself(reflect.TypeOf(c.v)); got != c.want {
			t.Errorf("%T: %v, want %v", c.v, got, c.want)
		}
	}
}
