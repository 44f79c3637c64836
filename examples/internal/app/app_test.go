package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
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

func clearEnvironment(t *testing.T) {
	t.Helper()
	for _, name := range []string{"REDIS_URL", "DATABASE_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "SLACK_BOT_TOKEN", "SLACK_CHANNEL", "SLACK_WEBHOOK_URL"} {
		t.Setenv(name, "")
	}
}

func parse(t *testing.T, args ...string) Config {
	t.Helper()
	clearEnvironment(t)
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
	if content := notified(t, filepath.Join(dir, "onceq.db")); !regexp.MustCompile(`[0-9]+ calls, [0-9,]+ tokens`).MatchString(content) {
		t.Errorf("told: %s, want what it cost", content)
	}

	if a, err = Start(t.Context(), c, quiet); err != nil {
		t.Fatal(err)
	}
	defer a.Shutdown()
	if status := post(); status != 200 {
		t.Errorf("submitted again after a restart: %d, want 200: the table knows", status)
	}
}

// notified returns the one message in the outbox.
func notified(t *testing.T, file string) string {
	t.Helper()
	db, err := OpenDatabase(file)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	var contents []string
	if err := db.Table("notification_logs").Pluck("content", &contents).Error; err != nil || len(contents) != 1 {
		t.Fatalf("messages %q, %v; want one", contents, err)
	}
	return contents[0]
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

// What cannot be is said by its own name, and before anything is opened or made.
func TestImpossibleSettings(t *testing.T) {
	for want, args := range map[string][]string{
		"-role \"boss\"":                      {"-role", "boss"},
		"-role worker: set REDIS_URL":         {"-role", "worker"},
		"-concurrency 0":                      {"-concurrency", "0"},
		"-timeout 1ms: use 1s or more":        {"-timeout", "1ms"},
		"-queue: the name has 0 bytes":        {"-queue", ""},
		"-prefix: prefix \"a:b\" has":         {"-prefix", "a:b"},
		"-max-crashes 0":                      {"-max-crashes", "0"},
		"\"api\": there are flags and no arg": {"api"},
	} {
		clearEnvironment(t)
		if _, err := Parse("test", args); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
	for _, c := range []struct{ name, value, want string }{
		{"SLACK_BOT_TOKEN", "xoxb-1", "go together"},
		{"REDIS_URL", "http://nowhere", "REDIS_URL: redis: invalid URL scheme"},
		{"REDIS_URL", "redis://:hunter2@host:port/0", "REDIS_URL: it is no URL; use redis://"},
		{"DATABASE_URL", "oracle://x", `DATABASE_URL: "oracle://" is not known; use postgres://, mysql://`},
		{"DATABASE_URL", "sqlite://x.db", "or the path of a SQLite file"},
		{"OPENAI_BASE_URL", "nonsense", "OPENAI_BASE_URL: use http://"},
		{"OPENAI_BASE_URL", "http:///v1", "OPENAI_BASE_URL: use http://"},
		{"OPENAI_API_KEY", "sk-hunter2", "set OPENAI_MODEL too"},
	} {
		clearEnvironment(t)
		t.Setenv(c.name, c.value)
		_, err := Parse("test", nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s=%s: %v, want an error with %q and no secret", c.name, c.value, err, c.want)
		}
	}
}

func TestHelpIsOfTheWorkerAlone(t *testing.T) {
	clearEnvironment(t)
	was := os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = w
	_, err = Parse("test", []string{"-addr", ":1", "-h"})
	os.Stderr = was
	_ = w.Close()
	help, _ := io.ReadAll(r)
	if !errors.Is(err, flag.ErrHelp) || !strings.Contains(string(help), `"127.0.0.1:8080"`) || strings.Contains(string(help), "-model-") {
		t.Errorf("%v\n%s\nwant the worker's flags with their defaults, and not the scripted model's", err, help)
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
