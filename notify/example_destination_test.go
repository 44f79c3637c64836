package notify_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/nexuscore/onceq/notify"
	"github.com/nexuscore/onceq/notify/notifytest"
)

// Messages reach a destination through an outbox as a rule; here one is sent by
// hand, its reply is lost, and it is found in the channel's history.
func ExampleNewSlack() {
	fake, err := notifytest.NewSlack() // a real program has a bot token and a channel ID
	if err != nil {
		fmt.Println(err)
		return
	}
	defer fake.Close()
	slack, err := notify.NewSlack(notifytest.Token, notifytest.Channel, notify.WithAPIURL(fake.URL()))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(slack.Name(), slack.Check(context.Background()))

	m := notify.Message{ID: "4f1c", Content: notify.Content{Text: "Run finished: add <login> page"}, FirstAttemptAt: time.Now()}
	fake.Script("chat.postMessage", notifytest.AcceptThenDrop)
	_, err = slack.Send(context.Background(), m)
	fmt.Println(err)
	_, found, err := slack.Find(context.Background(), m)
	fmt.Println(found, err)
	for _, seen := range fake.Seen(notifytest.Channel) {
		fmt.Println(seen.Visible())
	}
	// Output:
	// slack-C0FAKE0001 <nil>
	// uncertain: notify: slack: EOF
	// true <nil>
	// Run finished: add <login> page
}

func ExampleNewSlackWebhook() {
	fake, err := notifytest.NewSlack()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer fake.Close()
	hook, err := notify.NewSlackWebhook(fake.WebhookURL(notifytest.Channel), notify.WithName("ops"))
	if err != nil {
		fmt.Println(err)
		return
	}
	m := notify.Message{ID: "4f1c", Content: notify.Content{Text: "Run finished", Link: "https://example.com/runs/42"}}
	_, err = hook.Send(context.Background(), m)
	fmt.Println(hook.Name(), err)
	fmt.Println(fake.Seen(notifytest.Channel)[0].Visible())
	// Output:
	// ops <nil>
	// Run finished
	// <https://example.com/runs/42>
}

// The receiver checks the signature and takes nothing twice, so the destination
// may send again what it is not sure of.
func ExampleNewHTTP() {
	secret := []byte("at least sixteen bytes")
	taken := map[string]bool{}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil || notify.VerifySignature(secret, r.Header, body, 5*time.Minute) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if key := r.Header.Get("Idempotency-Key"); !taken[key] {
			taken[key] = true
			fmt.Println(key, string(body))
		}
	}))
	defer receiver.Close()

	hook, err := notify.NewHTTP(receiver.URL, notify.WithName("billing"), notify.WithSecret(secret), notify.WithIdempotentReceiver())
	if err != nil {
		fmt.Println(err)
		return
	}
	m := notify.Message{ID: "4f1c", RunID: "run-42", Event: "done", Generation: 1, CreatedAt: time.Unix(1700000000, 0), Content: notify.Content{Text: "Run finished"}}
	for range 2 {
		_, err := hook.Send(context.Background(), m)
		fmt.Println(err)
	}
	fmt.Println(hook.DefaultPolicy())
	// Output:
	// 4f1c {"id":"4f1c","run_id":"run-42","event":"done","generation":1,"created_at":"2023-11-14T22:13:20Z","text":"Run finished"}
	// <nil>
	// <nil>
	// resend
}

func ExampleRunFailed() {
	content, err := notify.RunFailed(notify.Report{
		RunID: "orchestrator-run-42",
		Title: "Add a login page",
		Phase: "testing", Done: 5, Phases: 7,
		Took:  12*time.Minute + 3*time.Second,
		Error: "dial postgres://app:s3cret@db: connection refused",
		Cost:  notify.Cost{USD: 1.23, Calls: 14, Tokens: 120_000},
	})
	fmt.Println(content.Text, err)
	// Output:
	// ❌ Run failed: Add a login page
	// Run: orchestrator-run-42
	// Phase: testing (5 of 7 done)
	// Took: 12m 3s
	// Cost: $1.23 (14 calls, 120,000 tokens)
	// Error: dial postgres://app:[hidden]@db: connection refused <nil>
}

func ExampleParseTemplate() {
	build, err := notify.ParseTemplate(`{{.Title}} is ready after {{took .Took}}.
{{define "blocks"}}[{"type":"section","text":{"type":"mrkdwn","text":{{json (slack .Title)}}}}]{{end}}`)
	if err != nil {
		fmt.Println(err)
		return
	}
	content, err := build(notify.Report{Title: "R&D <report>", Took: 90 * time.Second})
	fmt.Println(content.Text, err)
	fmt.Println(string(content.Blocks))
	// Output:
	// R&D <report> is ready after 1m 30s. <nil>
	// [{"type":"section","text":{"type":"mrkdwn","text":"R\u0026amp;D \u0026lt;report\u0026gt;"}}]
}
