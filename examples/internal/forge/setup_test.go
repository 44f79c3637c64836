package forge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"go.uber.org/goleak"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/internal/modelserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is a forge in front of a scripted model that lies where it is told to.
type bundle struct {
	f      *Forge
	client openai.Client
	model  *modelserver.Server
	dir    string

	mu   sync.Mutex
	lies map[string][]string // by task: what to answer instead, one after the other
	raw  map[string]http.HandlerFunc
	last map[string]string // by task: the last body
}

func setup(t *testing.T, opts ...Option) *bundle {
	t.Helper()
	model, err := modelserver.New()
	if err != nil {
		t.Fatal(err)
	}
	b := &bundle{model: model, dir: t.TempDir(), lies: map[string][]string{}, raw: map[string]http.HandlerFunc{}, last: map[string]string{}}
	srv := httptest.NewServer(b)
	t.Cleanup(func() {
		srv.Client().CloseIdleConnections()
		srv.Close()
		_ = model.Close()
	})
	b.client = openai.NewClient(option.WithBaseURL(srv.URL+"/v1/"), option.WithAPIKey("none"),
		option.WithMaxRetries(0), option.WithHTTPClient(srv.Client()))
	opts = append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	if b.f, err = New(b.client, "test-model", b.dir, opts...); err != nil {
		t.Fatal(err)
	}
	return b
}

var taskLine = regexp.MustCompile(`\\ntask: ([a-z-]+)\\n"`)

func (b *bundle) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	task := ""
	if m := taskLine.FindSubmatch(body); m != nil {
		task = string(m[1])
	}
	b.mu.Lock()
	b.last[task] = string(body)
	lies, raw := b.lies[task], b.raw[task]
	if len(lies) > 0 {
		b.lies[task] = lies[1:]
	}
	b.mu.Unlock()
	switch {
	case raw != nil:
		raw(w, r)
	case len(lies) > 0:
		say(w, bytes.Contains(body, []byte(`"stream":true`)), lies[0])
	default:
		b.model.ServeHTTP(w, r)
	}
}

// say answers with a text, as an endpoint would.
func say(w http.ResponseWriter, stream bool, text string) {
	quoted, _ := json.Marshal(text)
	if stream {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, `data: {"model":"liar","choices":[{"index":0,"delta":{"content":%s},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n", quoted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"model":"liar","choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":"stop"}]}`, quoted)
}

var quiet = checkpoint.WithLogger(slog.New(slog.DiscardHandler))

func (b *bundle) lie(task string, texts ...string) { b.lies[task] = texts }

func (b *bundle) phases() []checkpoint.Phase[State] {
	return []checkpoint.Phase[State]{
		{Name: "context", Run: b.f.Context}, {Name: "requirements", Run: b.f.Requirements},
		{Name: "planning", Run: b.f.Planning}, {Name: "architecture", Run: b.f.Architecture},
		{Name: "implementation", Run: b.f.Implementation}, {Name: "testing", Run: b.f.Testing},
		{Name: "review", Run: b.f.Review},
	}
}

// run goes through all phases.
func (b *bundle) run(t *testing.T, run string) State {
	t.Helper()
	s := State{Run: run, Goal: goal}
	for _, p := range b.phases() {
		if err := p.Run(t.Context(), &s); err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
	}
	return s
}

// tree lists the files below dir, sorted; none if there is no dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, filepath.ToSlash(rel))
		}
		return nil
	})
	return out
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}
