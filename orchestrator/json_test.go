package orchestrator_test

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/orchestrator"
)

// A run has one JSON form, whoever writes it.
func TestJSONIsWhatHTTPAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		for _, done := range []bool{false, true} {
			if done && w.deliver("7", "1") != nil {
				t.Fatal("not delivered")
			}
			run := w.status("7")
			want, err := json.Marshal(run)
			if err != nil {
				t.Fatal(err)
			}
			rec := httptest.NewRecorder()
			w.dispatcher.HTTP().ServeHTTP(rec, httptest.NewRequest("GET", "/runs/7", nil))
			diff(t, "answer", strings.TrimSpace(rec.Body.String()), string(want))
			var back orchestrator.Run
			if err := json.Unmarshal(want, &back); err != nil {
				t.Fatal(err)
			}
			run.Token, run.Settled, run.Revision = 0, false, 0 // not in the JSON form
			diff(t, "read back", back, run)
		}
	})
}

func TestJSONForms(t *testing.T) {
	run := orchestrator.Run{
		ID: 3, RunID: "7", Requirement: "a <b>", Parameters: `{"depth":9007199254740993}`, Status: orchestrator.StatusRunning,
		Generation: 1, Token: 5, Attempts: 1, Phase: "planning", PhasesDone: 2, PhasesTotal: 7, FromScratch: true, Settled: true,
		Revision: 9, CreatedAt: 946684800000, UpdatedAt: 946684800001, StartedAt: 946684800500,
	}
	entry := orchestrator.HistoryEntry{ID: 1, RunID: "7", At: 946684800000, Kind: "phase_finished", Generation: 1, Attempt: 1, Phase: "planning", DurationMS: 5}
	for want, v := range map[string]any{
		`{"id":3,"run_id":"7","requirement":"a \u003cb\u003e","parameters":{"depth":9007199254740993},"status":"RUNNING","generation":1,` +
			`"attempts":1,"phase":"planning","phases_done":2,"phases_total":7,"created_at":"2000-01-01T00:00:00.000Z",` +
			`"updated_at":"2000-01-01T00:00:00.001Z","started_at":"2000-01-01T00:00:00.500Z"}`: run,
		`{"at":"2000-01-01T00:00:00.000Z","kind":"phase_finished","generation":1,"attempt":1,"phase":"planning","duration_ms":5}`: entry,
	} {
		got, err := json.Marshal(v)
		if err != nil || string(got) != want {
			t.Errorf("%T: %s, %v; want %s", v, got, err, want)
		}
	}
}

func TestMillis(t *testing.T) {
	var never orchestrator.Millis
	if !never.Time().IsZero() {
		t.Errorf("0 is %v, want the zero time", never.Time())
	}
	if at := orchestrator.Millis(946684800500).Time(); !at.Equal(time.Date(2000, 1, 1, 0, 0, 0, 5e8, time.UTC)) || at.Location() != time.UTC {
		t.Errorf("946684800500 is %v", at)
	}
	var m orchestrator.Millis
	for text, want := range map[string]orchestrator.Millis{`"2000-01-01T01:00:00.5+01:00"`: 946684800500, `""`: 0} {
		if err := json.Unmarshal([]byte(text), &m); err != nil || m != want {
			t.Errorf("%s: %d, %v; want %d", text, m, err, want)
		}
	}
	var bad *time.ParseError
	if err := json.Unmarshal([]byte(`"yesterday"`), &m); !errors.As(err, &bad) {
		t.Errorf(`"yesterday": %v, want an error`, err)
	}
}
