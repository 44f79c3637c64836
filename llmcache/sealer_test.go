package llmcache

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/redistest"
)

// fickleSealer is a sealer whose key service may be away.
type fickleSealer struct {
	Sealer
	seal, open error
	panics     bool // instead of returning open
}

func (f *fickleSealer) Seal(plain, bound []byte) ([]byte, error) {
	if f.seal != nil {
		return nil, f.seal
	}
	return f.Sealer.Seal(plain, bound)
}

func (f *fickleSealer) Open(sealed, bound []byte) ([]byte, error) {
	switch {
	case f.open == nil:
		return f.Sealer.Open(sealed, bound)
	case f.panics:
		panic(f.open)
	}
	return nil, f.open
}

// "Cannot tell" is not "no": the call is paid, and what is stored is there when the
// sealer is back.
func TestASealerThatCannotTellLeavesTheAnswer(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]Sharing{"run": RunScope, "shared": SharedScope} {
		for _, panics := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " panics=", panics), func(t *testing.T) {
				t.Parallel()
				_, rdb := redistest.Mini(t)
				var log logtest.Log
				s := &fickleSealer{Sealer: seals(t), panics: panics}
				c := open(t, rdb, WithSealer(s), WithLogger(log.Logger()))
				p := &provider{answer: func(n int64, _ *http.Request, _ []byte) (*http.Response, error) { return jsonAnswer(200, chat(n)), nil }}
				tr := c.Transport(p)
				ask := func(want string) {
					t.Helper()
					ctx, l := attempt(t, t.Context(), "run", "p")
					defer l.End()
					if _, got := get(t, tr, ask(t, With(ctx, Scope(in)), plainChat)); strings.Join(got, "") != want {
						t.Errorf("got %q, want %q", got, want)
					}
				}
				ask(chat(1))
				s.open = fmt.Errorf("KMS: %w", ErrUnavailable)
				ask(chat(2))
				ask(chat(3))
				s.open = nil
				ask(chat(1))
				if s := c.Stats(); s.Passed != 2 || s.Stored != 1 || s.Discarded != 0 {
					t.Errorf("%+v, want two calls passed and nothing else stored or discarded", s)
				}
				if paid := account(t, c, "run").Paid.Calls; paid != 3 {
					t.Errorf("%d calls paid in the ledger, want 3", paid)
				}
				if out := log.String(); log.Count() != 2 || log.Count(slog.LevelWarn) != 1 || !strings.Contains(out, "sealer works again") {
					t.Errorf("want one line for each change:\n%s", out)
				}
				s.open = errors.New("of another key")
				s.panics = false
				ask(chat(4))
				s.open = nil
				ask(chat(4)) // it took the other's place
				if n := c.Stats().Discarded; n != 1 {
					t.Errorf("%d discarded, want 1", n)
				}
			})
		}
	}
}

// The store has looked at no budget when it found an answer.
func TestASealerThatCannotTellSpendsNoMoreThanTheBudget(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	s := &fickleSealer{Sealer: seals(t)}
	c := open(t, rdb, WithSealer(s), WithBudget(Budget{Calls: 2}))
	var m model
	for i, want := range []error{nil, nil, ErrBudget} {
		ctx, l := attempt(t, t.Context(), "run", "p")
		if _, err := Do(ctx, c, prompt("x"), m.ask); !errors.Is(err, want) {
			t.Errorf("attempt %d: %v, want %v", i, err, want)
		}
		l.End()
		s.open = ErrUnavailable
	}
	if n := m.calls.Load(); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

func TestASealerThatCannotSealPassesThrough(t *testing.T) {
	t.Parallel()
	_, rdb := redistest.Mini(t)
	var log logtest.Log
	s := &fickleSealer{Sealer: seals(t), seal: errors.New("KMS is away")}
	c := open(t, rdb, WithSealer(s), WithLogger(log.Logger()))
	var m model
	for _, want := range []string{"answer 1", "answer 2"} {
		if got := do(t, t.Context(), c, &m); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	s.seal = nil
	do(t, t.Context(), c, &m)
	if got := do(t, t.Context(), c, &m); got != "answer 3" {
		t.Errorf("got %q, want the third answer replayed", got)
	}
	if s := c.Stats(); s.Unstored != 2 || s.Stored != 1 {
		t.Errorf("%+v, want one of three stored", s)
	}
	if log.Count(slog.LevelWarn) != 1 || log.Count() != 2 {
		t.Errorf("want one line for each change:\n%s", log.String())
	}
}
