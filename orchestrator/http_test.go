package orchestrator_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/orchestrator"
)

type answer struct {
	code   int
	header http.Header
	body   map[string]any
}

func (w *world) call(method, path, body string, headers ...string) answer {
	w.t.Helper()
	return w.read(method, path, strings.NewReader(body), headers...)
}

func (w *world) read(method, path string, body io.Reader, headers ...string) answer {
	w.t.Helper()
	r := httptest.NewRequest(method, path, body)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	w.dispatcher.HTTP().ServeHTTP(rec, r)
	a := answer{code: rec.Code, header: rec.Header()}
	if err := json.Unmarshal(rec.Body.Bytes(), &a.body); err != nil {
		w.t.Errorf("%s %s: %d with body %q, which is no JSON", method, path, rec.Code, rec.Body.String())
	}
	return a
}

func TestHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		const body = `{"requirement":"build a thing","parameters":{"depth":9007199254740993,"lang":"go"}}`
		a := w.call("POST", "/runs", body, "Idempotency-Key", `"k-1"`)
		if a.code != 202 || a.body["run_id"] != "k-1" || a.body["status"] != "PENDING" || a.header.Get("Location") != "runs/k-1" {
			t.Fatalf("POST: %+v", a)
		}
		if run := w.status("k-1"); run.Parameters != `{"depth":9007199254740993,"lang":"go"}` {
			t.Errorf("parameters: %s", run.Parameters)
		}

		// The same again, however it is written, is the same run.
		for _, again := range []string{body, `{"parameters":{"lang":"go", "depth":9007199254740993},"requirement":"build a thing","run_id":"k-1"}`} {
			a = w.call("POST", "/runs", again, "Idempotency-Key", "k-1")
			if a.code != 409 || a.header.Get("Retry-After") != "10" || a.body["state"] != "queued" || a.body["run_id"] != "k-1" ||
				a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("POST again: %+v", a)
			}
		}
		a = w.call("POST", "/runs", `{"requirement":"build another thing"}`, "Idempotency-Key", "k-1")
		if a.code != 422 || a.body["run_id"] != "k-1" {
			t.Errorf("POST of something else: %+v", a)
		}
		w.serve()
		time.Sleep(5 * time.Second)
		a = w.call("POST", "/runs", body, "Idempotency-Key", "k-1")
		if a.code != 200 || a.body["status"] != "SUCCESS" || a.body["result"].(map[string]any)["phases"] != 7.0 {
			t.Errorf("POST of what has succeeded: %+v", a)
		}
		a = w.call("GET", "/runs/k-1", "")
		if a.code != 200 || a.body["status"] != "SUCCESS" || a.body["finished_at"] != "2000-01-01T00:00:01.000Z" && a.body["finished_at"] == "" {
			t.Errorf("GET: %+v", a)
		}
		a = w.call("GET", "/runs/k-1/history", "")
		if list, _ := a.body["history"].([]any); a.code != 200 || len(list) != 10 {
			t.Errorf("GET history: %+v", a)
		}
		a = w.call("POST", "/runs/k-1/rerun", "")
		if a.code != 200 || a.body["status"] != "SUCCESS" {
			t.Errorf("rerun of what has succeeded: %+v", a)
		}

		w.team.hook = failing("context", 1000, idempotent.Permanent(errBoom))
		a = w.call("POST", "/runs", `{"requirement":"fail"}`)
		id, _ := a.body["run_id"].(string)
		if a.code != 202 || len(id) < 20 {
			t.Fatalf("POST without a key: %+v", a)
		}
		time.Sleep(20 * time.Second)
		a = w.call("POST", "/runs", `{"requirement":"fail","run_id":"`+id+`"}`)
		if a.code != 409 || a.header.Get("Retry-After") != "" || a.body["retry_after"] != nil || a.body["state"] != "failed" ||
			a.body["detail"] != "the run has failed; a rerun starts it again" {
			t.Errorf("POST of what has failed: %+v", a)
		}
		a = w.call("POST", "/runs/"+id+"/rerun", `{"from_scratch":true}`)
		if a.code != 202 || a.body["generation"] != 2.0 {
			t.Errorf("rerun: %+v", a)
		}
		a = w.call("GET", "/runs?limit=1&status=SUCCESS", "")
		if list, _ := a.body["runs"].([]any); a.code != 200 || len(list) != 1 || list[0].(map[string]any)["run_id"] != "k-1" {
			t.Errorf("GET list: %+v", a)
		}
	})
}

func TestHostileRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{runs: []orchestrator.Option{orchestrator.WithMaxInput(1000)}})
		long := strings.Repeat("x", 1001)
		for _, c := range []struct {
			name, body string
			headers    []string
			code       int
			field      string
			detail     string // a part of it
		}{
			{"no body", ``, nil, 400, "body", "must be a JSON object"},
			{"an array", `[]`, nil, 400, "body", "must be a JSON object"},
			{"null", `null`, nil, 400, "body", "must be a JSON object"},
			{"cut off", `{"requirement":"x"`, nil, 400, "body", "not JSON"},
			{"no JSON", `{requirement: x}`, nil, 400, "body", "at byte 2"},
			{"two objects", `{"requirement":"x"}{"requirement":"y"}`, nil, 400, "body", "after the JSON object"},
			{"no UTF-8", "{\"requirement\":\"a\xffb\"}", nil, 400, "body", "not valid UTF-8"},
			{"no UTF-8 in a name", "{\"requirement\":\"x\",\"run_id\":\"a\xc3\"}", nil, 400, "body", "not valid UTF-8"},
			{"unknown field", `{"requirement":"x","priority":1}`, nil, 400, "priority", "no such field"},
			{"wrong type", `{"requirement":42}`, nil, 400, "requirement", "it is a JSON number, a string is needed"},
			{"wrong type of id", `{"requirement":"x","run_id":{"a":1}}`, nil, 400, "run_id", "it is a JSON object, a string is needed"},
			{"no requirement", `{"parameters":{}}`, nil, 400, "requirement", "empty"},
			{"blank requirement", `{"requirement":" \n"}`, nil, 400, "requirement", "empty"},
			{"NUL", `{"requirement":"a\u0000b"}`, nil, 400, "requirement", "NUL"},
			{"long requirement", `{"requirement":"` + long + `"}`, nil, 400, "requirement", "it has 1001 bytes, at most 1000 are allowed"},
			{"long parameters", `{"requirement":"x","parameters":{"a":"` + long + `"}}`, nil, 400, "parameters", "at most 1000"},
			{"parameters that are no object", `{"requirement":"x","parameters":[1]}`, nil, 400, "parameters", "JSON object"},
			{"long id", `{"requirement":"x","run_id":"` + strings.Repeat("i", 129) + `"}`, nil, 400, "run_id", "129 bytes, at most 128"},
			{"id with a control character", `{"requirement":"x","run_id":"a\nb"}`, nil, 400, "run_id", "control character"},
			{"id with a space at its end", `{"requirement":"x","run_id":"a "}`, nil, 400, "run_id", "space"},
			{"id that is a path", `{"requirement":"x","run_id":".."}`, nil, 400, "run_id", "relative path"},
			{"two names", `{"requirement":"x","run_id":"a"}`, []string{"Idempotency-Key", "b"}, 400, "run_id", "differs"},
			{"two keys", `{"requirement":"x"}`, []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, 400, "Idempotency-Key", "2 times"},
			{"empty key", `{"requirement":"x"}`, []string{"Idempotency-Key", `""`}, 400, "Idempotency-Key", "empty"},
			{"long key", `{"requirement":"x"}`, []string{"Idempotency-Key", strings.Repeat("k", 200)}, 400, "Idempotency-Key", "at most 128"},
			{"key that is no UTF-8", `{"requirement":"x"}`, []string{"Idempotency-Key", "\xff"}, 400, "Idempotency-Key", "UTF-8"},
		} {
			a := w.call("POST", "/runs", c.body, c.headers...)
			detail, _ := a.body["detail"].(string)
			if a.code != c.code || a.body["field"] != c.field || !strings.Contains(detail, c.detail) || a.body["status"] != float64(c.code) {
				t.Errorf("%s: %d %v, want %d, field %s, %q", c.name, a.code, a.body, c.code, c.field, c.detail)
			}
		}
		// 1 GB is not read.
		endless := &counted{}
		a := w.read("POST", "/runs", io.MultiReader(strings.NewReader(`{"requirement":"`), io.LimitReader(endless, 1<<30)))
		if detail, _ := a.body["detail"].(string); a.code != 413 || !strings.Contains(detail, "16096 bytes") || endless.n > 1<<20 {
			t.Errorf("huge body: %d %v, %d bytes read", a.code, a.body, endless.n)
		}
		for path, code := range map[string]int{
			"/runs/nobody": 404, "/runs/nobody/history": 404, "/runs/%00": 404, "/runs/" + strings.Repeat("n", 4000): 404,
			"/runs?limit=0": 400, "/runs?limit=201": 400, "/runs?limit=x": 400, "/runs?before=-1": 400, "/runs?status=DONE": 400,
		} {
			if a := w.call("GET", path, ""); a.code != code {
				t.Errorf("GET %.40s: %d %v, want %d", path, a.code, a.body, code)
			}
		}
		if a := w.call("POST", "/runs/nobody/rerun", ""); a.code != 404 {
			t.Errorf("rerun of nobody: %+v", a)
		}
		if a := w.call("POST", "/runs/nobody/rerun", `{"from_scratch":"yes"}`); a.code != 400 || a.body["field"] != "from_scratch" {
			t.Errorf("rerun with a wrong type: %+v", a)
		}
		for _, c := range []struct {
			method, path string
			code         int
			allow        string
		}{
			{"GET", "/", 404, ""}, {"GET", "/nothing", 404, ""}, {"POST", "/runs/a/b/c", 404, ""}, {"GET", "/runs/", 404, ""},
			{"DELETE", "/runs", 405, "GET, POST"}, {"PUT", "/runs/a", 405, "GET"}, {"POST", "/runs/a/history", 405, "GET"},
			{"GET", "/runs/a/rerun", 405, "POST"},
		} {
			a := w.call(c.method, c.path, "")
			if a.code != c.code || a.body["status"] != float64(c.code) || a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Allow") != c.allow {
				t.Errorf("%s %s: %+v, want a problem with %d and Allow %q", c.method, c.path, a, c.code, c.allow)
			}
		}
		if n := len(w.rdb.Keys(t.Context(), "*").Val()); n != 0 {
			t.Errorf("%d keys in Redis after nothing but refusals", n)
		}
	})
}

func TestARowDamagedByHandIsAProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.create("7")
		w.must(w.db.Exec("UPDATE onceq_runs SET result = '{'").Error)
		a := w.call("GET", "/runs/7", "")
		if a.code != 500 || a.body["status"] != 500.0 || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("GET: %+v, want a problem", a)
		}
	})
}

type counted struct{ n int }

func (c *counted) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	c.n += len(b)
	return len(b), nil
}

func TestOddIDsAreRunsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.serve()
		ids := []string{"a/b", "a:b", "a{b}", "a}b{", "a%2Fb", "größe 🚀", "A", "a", "a-b", "a=b", "...", "~g2", `a"b\c`, strings.Repeat("ü", 64)}
		for _, id := range ids {
			b, _ := json.Marshal(map[string]string{"requirement": "for " + id, "run_id": id})
			a := w.call("POST", "/runs", string(b))
			if a.code != 202 {
				t.Errorf("%q: %+v", id, a)
			}
			got := w.call("GET", "/"+a.header.Get("Location"), "")
			if got.code != 200 || got.body["run_id"] != id {
				t.Errorf("GET %s: %+v", a.header.Get("Location"), got)
			}
		}
		time.Sleep(10 * time.Second)
		for _, id := range ids {
			w.is(id, orchestrator.StatusSuccess)
		}
		if n := w.team.total(); n != 7*len(ids) {
			t.Errorf("%d phases were run, want %d", n, 7*len(ids))
		}
	})
}

// Which process has a run is not for strangers.
func TestHTTPTellsTheStateAndNotTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		const body = `{"requirement":"build a thing","run_id":"7"}`
		wait := make(chan struct{})
		w.team.hook = func(context.Context, string, int) error { <-wait; return nil }
		w.create("7")
		done := make(chan error, 1)
		go func() { done <- w.deliver("7", "1") }()
		synctest.Wait()
		seen, err := w.guard.Lookup(t.Context(), w.runs.Key("7"))
		if err != nil || seen.Holder == "" {
			t.Fatalf("Lookup = %+v, %v, want a holder", seen, err)
		}
		a := w.call("POST", "/runs", body)
		if a.code != 409 || a.body["detail"] != "the run is running already" || a.body["state"] != "running" ||
			a.header.Get("Retry-After") != "30" || a.body["retry_after"] != 30.0 || a.header.Get("Location") != "runs/7" {
			t.Errorf("POST of what is running: %+v", a)
		}
		a = w.call("POST", "/runs", `{"requirement":"other","run_id":"7"}`)
		if a.code != 422 || a.body["detail"] != "the ID is that of a run with another input: use a new one for other work" {
			t.Errorf("POST of something else: %+v", a)
		}
		close(wait)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestHTTPWhenRedisOrTheDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := withFlaky(t, setup{})
		p := w.newProcess(setup{enqueuer: f})
		f.before = errDead
		a := p.call("POST", "/runs", `{"requirement":"x"}`)
		id, _ := a.body["run_id"].(string)
		if a.code != 503 || a.header.Get("Retry-After") != "1" || a.body["retry_after"] != 1.0 || a.header.Get("Location") != "" ||
			strings.Contains(a.body["detail"].(string), "dead") {
			t.Errorf("without Redis: %+v", a)
		}
		if run := w.status(id); run.Status != orchestrator.StatusFailed || !run.Settled {
			t.Errorf("a run that nobody can ask for again is %s, want FAILED: it was not accepted", run.Status)
		}
		run, err := p.dispatcher.Create(t.Context(), orchestrator.NewRun{Requirement: "x"})
		if !errors.Is(err, idempotent.ErrUnavailable) {
			t.Errorf("Create = %v, want ErrUnavailable", err)
		}
		diff(t, "the run that was withdrawn", run, w.status(run.RunID))
		diff(t, "notifications", w.notes(), []string{})
		a = p.call("POST", "/runs", `{"requirement":"x"}`, "Idempotency-Key", "mine")
		if a.code != 503 {
			t.Errorf("without Redis: %+v", a)
		}
		f.before = nil
		if a = p.call("POST", "/runs", `{"requirement":"x"}`, "Idempotency-Key", "mine"); a.code != 202 {
			t.Errorf("asked again: %+v", a)
		}
		p.deadStore.Store(true)
		for _, c := range [][2]string{{"POST", "/runs"}, {"GET", "/runs"}, {"GET", "/runs/mine"}, {"GET", "/runs/mine/history"}, {"POST", "/runs/mine/rerun"}} {
			body := ""
			if c[1] == "/runs" && c[0] == "POST" {
				body = `{"requirement":"x"}`
			}
			if a = p.call(c[0], c[1], body); a.code != 503 || strings.Contains(a.body["detail"].(string), "dead") {
				t.Errorf("%s %s without a database: %+v", c[0], c[1], a)
			}
		}
	})
}
