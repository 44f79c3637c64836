package checkpoint

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/nexuscore/onceq/internal/logtest"
	"github.com/nexuscore/onceq/internal/redistest"
)

func TestKillSwitch(t *testing.T) {
	rdb, store := mini(t)
	var tr trail
	a := begin(t, rdb, "r")
	if _, err := Run(a.ctx, store, failing(tr.phases("1", "2"), "2"), state{}); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	t.Setenv(EnvSwitch, "0")
	var n redistest.Counter
	rdb.AddHook(&n)
	tr.reset()
	if _, err := Run(a.ctx, store, tr.phases("1", "2"), state{}); err != nil || tr.String() != "1 2" || n.Commands() != 0 {
		t.Errorf("switched off: ran %q, %v, %d commands; want 1 2, nil, 0", &tr, err, n.Commands())
	}
	a.Lose(errBoom)
	if _, err := Run(a.ctx, store, tr.phases("1", "2"), state{}); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("switched off with a lost lease: %v, want ErrLeaseLost", err)
	}
}

// Whoever sets the switch in an emergency and mistypes it hears of that, once.
func TestAKillSwitchWithAnUnknownValue(t *testing.T) {
	t.Setenv(EnvSwitch, "OFF")
	saidUnknown = sync.Once{} // it is once per process
	var l logtest.Log
	rdb, store := mini(t, WithLogger(l.Logger()))
	var tr trail
	for _, key := range []string{"r", "s"} {
		if _, err := Run(begin(t, rdb, key).ctx, store, tr.phases("1"), state{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := store.Stats().Saves; n != 2 || l.Count(slog.LevelWarn) != 1 || !strings.Contains(l.String(), "by=ONCEQ_CHECKPOINT value=OFF") {
		t.Errorf("%d saves, log\n%s\nwant 2 and one WARN line with the value", n, &l)
	}
}
