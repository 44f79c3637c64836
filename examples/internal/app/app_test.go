package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nexuscore/onceq/orchestrator"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop")) // idle connections of clients
}

var quiet = slog.New(slog.DiscardHandler)

func parse(t *testing.T, args ...string) Config {
	t.Helper()
	for _, name := range []string{"REDIS_URL", "DATABASE_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "SLACK_BOT_TOKEN", "SLACK_CHANNEL", "SLACK_WEBHOOK_URL"} {
		t.Setenv(name, "")
	}
	c, err := Parse("test", args)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A run from the outside: submitted twice over HTTP, done once, with files on disk,
// and still known after a restart that forgot Redis.
func TestEmbedded(t *testing.T) {
	dir := t.TempDir()
	c := parse(t, "-addr", "127.0.0.1:0", "-dir", dir)
	a, err := Start(t.Context(), c, quiet)
	if err != nil {
		t.Fatal(err)
	}
	post := func() int {
		res, err := http.Post("http://"+a.Addr()+"/runs", "application/json",
			strings.NewReader(`{"run_id":"words","requirement":"a CLI that counts words in files"}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	if first, second := post(), post(); first != 202 || second != 409 && second != 200 {
		t.Errorf("submitted twice: %d and %d, want 202, then 409 or 200", first, second)
	}
	run := awaitEnd(t, a.Addr(), "words")
	if run.Status != "SUCCESS" || run.Attempts != 1 || run.Done != 7 {
		t.Errorf("run: %+v, want SUCCESS in one attempt of 7 phases", run)
	}
	for _, file := range []string{"context.md", "requirements.md", "plan.json", "architecture.md", "code/main.go", "test-report.md", "review.md"} {
		if info, err := os.Stat(filepath.Join(dir, "words", file)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, want a file with something in it", file, err)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := get(t, "http://"+a.Addr()+path); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	a.Shutdown()

	if a, err = Start(t.Context(), c, quiet); err != nil {
		t.Fatal(err)
	}
	defer a.Shutdown()
	if status := post(); status != 200 {
		t.Errorf("submitted again after a restart: %d, want 200: the table knows", status)
	}
}

type status struct {
	Status   string `json:"status"`
	Attempts int    `json:"attempts"`
	Done     int    `json:"phases_done"`
}

func awaitEnd(t *testing.T, addr, id string) (s status) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond) // an HTTP API does not call back
	defer tick.Stop()
	late := time.After(2 * time.Minute)
	for {
		_, body := get(t, "http://"+addr+"/runs/"+id)
		if err := json.Unmarshal(body, &s); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if orchestrator.Status(s.Status).Ended() {
			return s
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("run %s has not ended: %s", id, body)
		}
	}
}

func get(t *testing.T, url string) (int, []byte) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, bytes.TrimSpace(body)
}

func TestImpossibleSettings(t *testing.T) {
	for want, args := range map[string][]string{
		"-role \"boss\"": {"-role", "boss"},
		"REDIS_URL":      {"-role", "worker"},
		"-concurrency 0": {"-concurrency", "0"},
	} {
		for _, name := range []string{"REDIS_URL", "DATABASE_URL", "SLACK_BOT_TOKEN", "SLACK_CHANNEL"} {
			t.Setenv(name, "")
		}
		if _, err := Parse("test", args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want an error naming %s", args, err, want)
		}
	}
	for want, env := range map[string][2]string{
		"go together": {"SLACK_BOT_TOKEN", "xoxb-1"},
		"REDIS_URL":   {"REDIS_URL", "http://nowhere"},
	} {
		t.Run(env[0], func(t *testing.T) {
			c := parse(t, "-addr", "", "-dir", t.TempDir())
			c.environment(func(name string) string {
				if name == env[0] {
					return env[1]
				}
				return ""
			})
			err := c.Validate()
			if err == nil {
				_, err = Start(t.Context(), c, quiet)
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s=%s: %v, want an error naming %s", env[0], env[1], err, want)
			}
		})
	}
}

// What the plan tested of its settings: nothing that a run leaves behind ends
// before the run can come back for it.
func TestSettingsFitTogether(t *testing.T) {
	const (
		checkpointTTL = 24 * time.Hour     // checkpoint.WithTTL's default
		retention     = 7 * 24 * time.Hour // idempotent.WithRetention's default
		longestWait   = time.Hour          // a Retry-After is cut to that
	)
	c := parse(t)
	if budget := time.Duration(5)*2*time.Minute + longestWait; c.Timeout+budget > checkpointTTL {
		t.Errorf("an attempt of %v and its retries of %v outlive a checkpoint of %v", c.Timeout, budget, checkpointTTL)
	}
	if checkpointTTL > retention {
		t.Error("a checkpoint outlives the record of its run")
	}
	if got, want := fmt.Sprint(c.Timeout, c.MaxCrashes, c.Concurrency), "2h0m0s 5 10"; got != want {
		t.Errorf("defaults %s, want %s: operations.md names them", got, want)
	}
}
