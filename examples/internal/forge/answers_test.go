package forge

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nexuscore/onceq/internal/modelserver"
)

const fence = "```"

func TestFilesOfManyModels(t *testing.T) {
	body := "package main\n\nfunc a() {}\n"
	for name, text := range map[string]string{
		"comment":          fence + "go\n// file: a.go\n" + body + fence,
		"comment, plain":   fence + "go\n// a.go\n" + body + fence,
		"info string":      fence + "go a.go\n" + body + fence,
		"info, attribute":  fence + "go file=\"a.go\"\n" + body + fence,
		"info, colon":      fence + "go:a.go\n" + body + fence,
		"info is the name": fence + "a.go\n" + body + fence,
		"heading":          "### `a.go`\n\n" + fence + "go\n" + body + fence,
		"bold":             "**a.go**:\n" + fence + "golang\n" + body + fence,
		"dot slash":        fence + "go\n// file: ./a.go\n" + body + fence,
		"tildes":           "~~~go\n// file: a.go\n" + body + "~~~\n",
		"longer fence":     fence + "`go\n// file: a.go\n" + body + fence + "`",
		"CRLF":             strings.ReplaceAll(fence+"go\n// file: a.go\n"+body+fence, "\n", "\r\n"),
		"never closed":     fence + "go\n// file: a.go\n" + body,
		"no name at all":   fence + "go\n" + body + fence,
		"no fence at all":  body,
		"with other blocks": "Run:\n" + fence + "sh\ngo run .\n" + fence + "\n" + fence + "go\n// file: a.go\n" + body + fence +
			"\ngo.mod:\n" + fence + "\nmodule evil\n" + fence + "\n" + fence + "go.mod\nmodule evil\n" + fence,
		"twice, the last counts": fence + "go\n// file: a.go\npackage main\n" + fence + "\nBetter:\n" + fence + "go\n// file: a.go\n" + body + fence,
	} {
		got, err := files("a.go")(text)
		if err != nil || len(got) != 1 || got[0].Name != "a.go" || strings.ReplaceAll(got[0].Content, "\r\n", "\n") != body {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestFilesRefused(t *testing.T) {
	in := func(name, src string) string {
		return fence + "go\n// file: " + name + "\n" + src + "\n" + fence + "\n"
	}
	many := ""
	for i := range 21 {
		many += in(fmt.Sprintf("f%d.go", i), "package main")
	}
	for text, want := range map[string]string{
		"":                                                    "there is no Go file",
		"I cannot do that.":                                   "there is no Go file",
		in("../../evil.go", "package main"):                   `called "../../evil.go"`,
		in("/etc/cron.d/evil.go", "package m"):                `called "/etc/cron.d/evil.go"`,
		in("cmd/main.go", "package main"):                     `called "cmd/main.go"`,
		in(`..\evil.go`, "package main"):                      "a file is called",
		in("Main.go", "package main"):                         `called "Main.go"`,
		in(".go", "package main"):                             `called ".go"`,
		in(strings.Repeat("a", 61)+".go", "package main"):     "a file is called",
		fence + "go:../x.go\npackage main\n" + fence:          `called "../x.go"`,
		in("a.go", "func"):                                    "a.go is not Go",
		in("a.go", "package other"):                           `in package "other"`,
		in("a.go", "package main\nimport \"C\""):              `imports "C"`,
		in("a.go", "package main\nimport \"github.com/x/y\""): `imports "github.com/x/y"`,
		in("a_test.go", "package main"):                       "has no test function",
		in("", "package main") + in("", "package main"):       "2 of its files have no name",
		many: "it has 21 files",
		in("a.go", "package main\n//"+strings.Repeat("x", maxCode)): "allowed are 20 of 196608",
	} {
		got, err := files("main.go")(text)
		if _, bad := errors.AsType[unusable](err); !bad || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %d files, %v, want %q", text, len(got), err, want)
		}
	}
	if _, err := code(in("a_test.go", "package main\nfunc TestA(t *testing.T) {}")); err == nil {
		t.Error("tests were taken for the program")
	}
	if _, err := tests(in("a.go", "package main")); err == nil {
		t.Error("the program was taken for tests")
	}
}

func TestStructuredAnswers(t *testing.T) {
	parse := structured(list(func(r Risk) bool { return r.Risk != "" }, "risk"))
	for name, text := range map[string]string{
		"bare":      `[{"risk":"x"}]`,
		"fenced":    fence + "json\n[{\"risk\":\"x\"}]\n" + fence,
		"sentence":  "As asked [see {above}], here: [{\"risk\":\"x\"}] - anything else?",
		"wrapped":   `{"risks":[{"risk":"x"}]}`,
		"more keys": `[{"risk":"x","owner":{"a":[1]}}]`,
	} {
		if got, err := parse(text); err != nil || len(got) != 1 || got[0].Risk != "x" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                        "no JSON",
		"none":                    "no JSON",
		`[]`:                      "0 elements",
		`[{}]`:                    "element 1 lacks risk",
		`[{"risk":`:               "unexpected EOF",
		strings.Repeat("[", 1000): "not what was asked for",
		`[` + strings.Repeat(`{"risk":"x"},`, 100) + `{"risk":"x"}]`: "101 elements",
	} {
		_, err := parse(text)
		if _, bad := errors.AsType[unusable](err); !bad || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func TestRequirementsOfManyModels(t *testing.T) {
	for _, line := range []string{"R1. Do x.", "- R1: Do x.", "**R1.** Do x.", "* **R1**: Do x.", "### R1 - Do x.", "| R1 | Do x. |", "REQ-1: Do x.", "  R1) Do x."} {
		r, err := requirements("# Requirements\n\n" + line + "\n")
		if err != nil || len(r.Items) != 1 || r.Items[0] != (Requirement{"R1", "Do x."}) {
			t.Errorf("%q: %+v, %v", line, r.Items, err)
		}
	}
	if _, err := requirements("Something about Rust 1. and R2D2"); err == nil {
		t.Error("a text without requirements was taken")
	}
}

// An answer that cannot be used is asked for once more, with the reason; a
// second one ends the phase for good.
func TestSecondChance(t *testing.T) {
	b := setup(t, WithoutTests())
	b.lie("risks", "Certainly! There are none.")
	b.lie("code", fence+"go\n// file: ../../../tmp/evil.go\npackage main\n"+fence)
	s := b.run(t, "run-1")
	if len(s.Plan.Risks) != 3 || len(s.Files) != 3 {
		t.Errorf("risks %v, files %d", s.Plan.Risks, len(s.Files))
	}
	// A lie, told twice.
	b.lie("code", slices.Repeat([]string{fence + "go\n// file: ../../../tmp/evil.go\npackage main\n" + fence}, 2)...)
	err := b.f.Implementation(t.Context(), &s)
	e, ok := errors.AsType[*AnswerError](err)
	if !ok || e.Phase != "implementation" || e.Task != "code" || !e.Permanent() || !strings.Contains(err.Error(), `a file is called "../../../tmp/evil.go"`) {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(b.last["code"], "That answer cannot be used: a file is called") {
		t.Error("the second question does not say what was wrong")
	}
}

func TestHugeAndEmptyAnswers(t *testing.T) {
	endless := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			if _, err := fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", strings.Repeat("x", 4000)); err != nil {
				return
			}
		}
	}
	endlessBody := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"model":"liar","choices":[`)
		for r.Context().Err() == nil {
			if _, err := fmt.Fprint(w, strings.Repeat(" ", 64<<10)); err != nil {
				return
			}
		}
	}
	finish := func(reason string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"model":"liar","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":%q}]}`, reason)
		}
	}
	for name, c := range map[string]struct {
		task string
		raw  http.HandlerFunc
		lies []string
		want string
	}{
		"endless stream": {"architecture", endless, nil, "more than 262144 bytes"},
		"endless body":   {"decisions", endlessBody, nil, "more than 262144 bytes"},
		"long document":  {"architecture", nil, []string{strings.Repeat("x ", 40_000), strings.Repeat("x ", 40_000)}, "allowed are 65536"},
		"empty":          {"architecture", nil, []string{"", " \n"}, "it is empty"},
		"cut for length": {"decisions", finish("length"), nil, "cut off for its length"},
		"filtered":       {"decisions", finish("content_filter"), nil, `"content_filter"`},
	} {
		b := setup(t, WithoutTests())
		if c.raw != nil {
			b.raw[c.task] = c.raw
		}
		b.lies[c.task] = c.lies
		s := State{Run: "run", Goal: goal}
		err := b.f.Architecture(t.Context(), &s)
		if _, ok := errors.AsType[*AnswerError](err); !ok || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A stream that ends cleanly but early is no answer, and worth another try.
func TestTruncatedStream(t *testing.T) {
	b := setup(t, WithoutTests())
	if err := b.model.Fail(1, modelserver.TruncateAfter(1500)); err != nil {
		t.Fatal(err)
	}
	s := State{Run: "run", Goal: goal}
	err := b.f.Context(t.Context(), &s)
	if _, final := errors.AsType[*AnswerError](err); !errors.Is(err, ErrIncomplete) || final {
		t.Errorf("got %v, want ErrIncomplete", err)
	}
	if err := b.f.Context(t.Context(), &s); err != nil {
		t.Error(err)
	}
}

// A program whose tests fail is mended by the model.
func TestRepair(t *testing.T) {
	b := setup(t)
	b.lie("tests", fence+"go\n// file: wordcount_test.go\npackage main\nimport \"testing\"\nfunc TestNo(t *testing.T) { t.Fatal(\"no\") }\n"+fence)
	s := b.run(t, "run-1")
	if !s.Tests.Passed || s.Tests.Repairs != 1 || !strings.Contains(s.Files[2].Content, "TestCount") {
		t.Errorf("tests %+v", s.Tests)
	}
}

// One that stays broken ends with a review that says so.
func TestStaysBroken(t *testing.T) {
	b := setup(t, WithTestTimeout(time.Minute))
	broken := fence + "go\n// file: main.go\npackage main\nfunc main() { undefined() }\n" + fence
	b.lie("code", broken)
	b.lie("repair", broken, broken)
	s := b.run(t, "run-1")
	if !s.Tests.Ran || s.Tests.Passed || s.Tests.Repairs != 2 || s.Review.Approved || !strings.Contains(s.Tests.Output, "undefined: undefined") {
		t.Errorf("tests %+v, approved %v", s.Tests, s.Review.Approved)
	}
	if got := read(t, b.f.Dir("run-1"), "review.md"); !strings.Contains(got, "not approved") {
		t.Errorf("review %s", got)
	}
}

// Generated code sees none of our keys, a hanging test is stopped, and much
// output is cut.
func TestGeneratedCodeIsHeldShort(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "secret-key")
	b := setup(t, WithTestTimeout(20*time.Second))
	s := State{Run: "run", Goal: goal, Usage: "x\n", Files: []File{{"a_test.go", `package main
import ("fmt"; "os"; "strings"; "testing")
func TestA(t *testing.T) {
	fmt.Println(os.Environ())
	fmt.Println(strings.Repeat("x", 100000))
	t.Fail()
}
`}}}
	if err := b.f.writeProgram(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	r, err := b.f.goTest(t.Context(), "run")
	if err != nil || !r.Ran || r.Passed || strings.Contains(r.Output, "secret-key") || !strings.Contains(r.Output, "GOPROXY=off") || !strings.HasSuffix(r.Output, "(cut here)\n") {
		t.Errorf("%d bytes, %v: %.600s", len(r.Output), err, r.Output)
	}
	b.f.timeout = time.Second
	s.Files[0].Content = "package main\nimport \"testing\"\nfunc TestA(*testing.T) { select {} }\n"
	if err := b.f.writeProgram(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	if r, err = b.f.goTest(t.Context(), "run"); err != nil || !r.Ran || r.Passed || !strings.Contains(r.Output, "FAIL: stopped after 1s") {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestSettle(t *testing.T) {
	in := "--- FAIL: TestA (0.03s)\n/tmp/run/code/a.go:3\ngoroutine 17 [running]:\nmain.f(0xc000012a0?)\nok \tgenerated\t1.234s\n"
	want := "--- FAIL: TestA (0.00s)\n./a.go:3\ngoroutine N [running]:\nmain.f(0x0)\nok \tgenerated\t0.00s\n"
	if got := settle(in, "/tmp/run/code"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
