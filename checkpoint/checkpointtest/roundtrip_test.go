package checkpointtest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nexuscore/onceq/checkpoint/checkpointtest"
)

// recorder is a testing.TB that remembers what failed.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

type inner struct {
	X    int
	when time.Time
}

type hidden struct{ Y int }

type lossy struct {
	hidden
	A    string
	Skip int `json:"-"`
}

type (
	Left  struct{ X int }
	Right struct{ X int }
)

type face interface{ Do() }

type own struct{ n int }

func (o own) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%d", o.n), nil }
func (o *own) UnmarshalJSON(b []byte) error {
	_, err := fmt.Sscan(string(b), &o.n)
	return err
}

type forgetful struct{ n int }

func (forgetful) MarshalJSON() ([]byte, error) { return []byte("0"), nil }
func (*forgetful) UnmarshalJSON([]byte) error  { return nil }
func (o forgetful) Equal(other forgetful) bool { return o.n == other.n }

type broken struct{}

func (broken) MarshalJSON() ([]byte, error) { return nil, errors.New("no") }

type list struct {
	V    int
	Next *list
}

func check[S any](t *testing.T, value S, wants []string, transient ...string) {
	t.Helper()
	r := &recorder{}
	checkpointtest.RoundTrip(r, value, transient...)
	got := strings.Join(r.failures, "\n")
	if len(r.failures) != len(wants) {
		t.Errorf("%T: %d failures, want %d:\n%s", value, len(r.failures), len(wants), got)
	}
	for _, want := range wants {
		if !strings.Contains(got, want) {
			t.Errorf("%T: failures\n%s\nwant one with %q", value, got, want)
		}
	}
}

func TestRoundTripOfSoundStates(t *testing.T) {
	t.Parallel()
	check(t, struct {
		hidden
		A string
		B []byte
		C map[string][]int
		D *int
		E any
		T time.Time
		N *big.Int
		O own
		M map[int]string
		L []string `json:",omitempty"`
		S list
	}{
		hidden{1}, "ä<>&\u2028\ufffd", []byte{0, 255}, map[string][]int{"": {1}}, new(3), "x", time.Now(), big.NewInt(1 << 62),
		own{4}, map[int]string{1: "a"}, []string{}, list{1, &list{2, nil}},
	}, nil)
	check(t, map[string]any{"a": 1.5, "b": []any{true, nil, "x"}}, nil)
	check(t, "just a string", nil)
}

func TestRoundTripFindsWhatIsLost(t *testing.T) {
	t.Parallel()
	check(t, struct {
		In []inner
		mu sync.Mutex
	}{In: []inner{{1, time.Now()}}}, []string{".In[].when is unexported", ".mu is unexported"})
	check(t, struct {
		In []inner
		mu sync.Mutex
	}{In: []inner{{1, time.Now()}}}, nil, "mu", "In[].when")
	check(t, struct {
		Secret string `json:"-"`
	}{"x"}, []string{`.Secret is tagged json:"-"`})
	check(t, lossy{hidden{1}, "a", 1}, []string{".Skip is tagged"})
	check(t, struct{ F float64 }{math.NaN()}, []string{".F: json: unsupported value: NaN"})
	check(t, struct{ F func() }{func() {}}, []string{".F is a func", "cannot be stored"})
	check(t, struct{ C map[string]chan int }{}, []string{".C{} is a chan"})
	check(t, struct{ I face }{}, []string{".I is of interface type checkpointtest_test.face"})
	check(t, struct{ M json.Marshaler }{}, []string{".M is of interface type json.Marshaler"})
	check(t, struct{ A any }{7}, []string{".A was a int and comes back as a float64"})
	check(t, map[string]any{"n": int64(1) << 60}, []string{`["n"] was a int64`})
	check(t, struct{ S string }{"\xff"}, []string{".S: string is not valid UTF-8"})
	check(t, struct{ B broken }{}, []string{"cannot be stored"})
	check(t, struct{ F forgetful }{forgetful{3}}, []string{".F was"})
	check(t, struct { // two fields of one name: encoding/json drops both
		Left
		Right
	}{Left{1}, Right{2}}, []string{".Left.X was 1 and comes back as 0", ".Right.X was 2"})
	check(t, struct {
		P *int `json:",omitzero"`
		Q *[]int
	}{new(0), new([]int(nil))}, []string{".Q was"})
	cycle := &list{V: 1}
	cycle.Next = cycle
	check(t, cycle, []string{"cycle"})
}
