package forge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const maxOutput = 24 << 10

// goTest runs the program's tests where they lie. A program that does not
// compile, fails or hangs is a result; an error means that there is none.
func (f *Forge) goTest(ctx context.Context, run string) (TestRun, error) {
	if f.goTool == "" {
		return TestRun{Output: "not run: " + f.noTests + "\n"}, nil
	}
	home, err := os.MkdirTemp("", "forge-")
	if err != nil {
		return TestRun{}, fmt.Errorf("forge: testing: %w", err)
	}
	defer os.RemoveAll(home)
	limited, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	// The test binary ends by itself even if this process is killed meanwhile.
	cmd := exec.CommandContext(limited, f.goTool, "test", "-count=1", "-timeout="+f.timeout.String(), "./...")
	cmd.Dir = filepath.Join(f.Dir(run), "code")
	cmd.Env = testEnv(home)
	cmd.WaitDelay = 2 * time.Second // a grandchild may hold the pipe
	out := &head{}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if ctx.Err() != nil {
		return TestRun{}, context.Cause(ctx)
	}
	r := TestRun{Ran: true, Passed: err == nil, Output: settle(out.String(), cmd.Dir, home)}
	switch {
	case limited.Err() != nil:
		r.Output += fmt.Sprintf("FAIL: stopped after %v\n", f.timeout)
	case err != nil && !isExit(err):
		return TestRun{}, fmt.Errorf("forge: testing: %w", err)
	}
	return r, nil
}

func isExit(err error) bool {
	_, ok := errors.AsType[*exec.ExitError](err)
	return ok || errors.Is(err, exec.ErrWaitDelay)
}

// testEnv is all that generated code sees of our environment: no keys, no
// network for the go command, a home of its own. The build cache is shared, or
// each run would compile the standard library.
func testEnv(home string) []string {
	cache := os.Getenv("GOCACHE")
	if cache == "" {
		cache = filepath.Join(home, "cache")
		if dir, err := os.UserCacheDir(); err == nil {
			cache = filepath.Join(dir, "go-build")
		}
	}
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "GOPATH=" + filepath.Join(home, "go"),
		"GOCACHE=" + cache, "GOENV=off", "GOFLAGS=-mod=mod", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off",
		"GOTOOLCHAIN=local", "GOTELEMETRY=off", "CGO_ENABLED=0",
	}
	for _, name := range []string{"GOROOT", "SYSTEMROOT"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// head keeps the beginning of what is written, and says if that is not all.
type head struct {
	b   strings.Builder
	cut bool
}

func (h *head) Write(p []byte) (int, error) {
	room := maxOutput - h.b.Len()
	h.b.Write(p[:min(len(p), room)])
	h.cut = h.cut || len(p) > room
	return len(p), nil
}

func (h *head) String() string {
	s := strings.ToValidUTF8(h.b.String(), "\ufffd")
	if h.cut {
		s += "\n(cut here)\n"
	}
	return s
}

var unsettled = regexp.MustCompile(`\b\d+\.\d+s\b|0x[0-9a-f]+\??|goroutine \d+`)

// settle takes out what differs between two runs of the same program, since the
// text becomes part of a question, and equal questions are paid once.
func settle(out string, dirs ...string) string {
	for _, d := range dirs {
		out = strings.ReplaceAll(out, d, ".")
	}
	return unsettled.ReplaceAllStringFunc(out, func(s string) string {
		switch {
		case strings.HasPrefix(s, "goroutine"):
			return "goroutine N"
		case strings.HasPrefix(s, "0x"):
			return "0x0"
		}
		return "0.00s"
	})
}
