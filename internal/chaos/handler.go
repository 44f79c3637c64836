package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hibiken/asynq"

	"github.com/nexuscore/onceq/checkpoint"
	"github.com/nexuscore/onceq/idempotent"
	"github.com/nexuscore/onceq/internal/modelserver"
	"github.com/nexuscore/onceq/orchestrator"
)

// state is what a run hands from phase to phase.
type state struct {
	Run  string
	Spec runSpec
	Done []string // phases, in the order in which they were
}

func (w *worker) handler() (asynq.Handler, error) {
	snapshots, err := checkpoint.NewRedisStore(w.rdb, checkpoint.WithLogger(w.log), checkpoint.WithBreaker(3, time.Second))
	if err != nil {
		return nil, err
	}
	var list []checkpoint.Phase[state]
	for i, name := range phases {
		list = append(list, checkpoint.Phase[state]{Name: name, Run: func(ctx context.Context, s *state) error { return w.phase(ctx, i, s) }})
	}
	return orchestrator.NewHandler(w.runs, snapshots, orchestrator.Orchestration[state]{
		Start: func(r orchestrator.Run) (state, error) {
			s := state{Run: r.RunID}
			return s, json.Unmarshal([]byte(r.Parameters), &s.Spec)
		},
		Phases: list,
		Result: func(_ orchestrator.Run, s state) (any, error) { return s.Done, nil },
	}, checkpoint.WithLogger(w.log))
}

// watch tells of every attempt: it is inside the guard and around the handler.
func (w *worker) watch(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) (err error) {
		w.busy.Add(1)
		defer w.busy.Done()
		var job struct {
			RunID string `json:"run_id"`
		}
		if err := json.Unmarshal(t.Payload(), &job); err != nil {
			return err
		}
		if err := w.tellOf(ctx, job.RunID, entry{Kind: began}); err != nil {
			return err
		}
		err = next.ProcessTask(ctx, t)
		e := entry{Kind: returned}
		if err != nil {
			e.Detail = err.Error()
		}
		_ = w.tellOf(context.WithoutCancel(ctx), job.RunID, e) // it has returned, whatever became of its context
		return err
	})
}

func (w *worker) tellOf(ctx context.Context, run string, e entry) error {
	a := idempotent.MustFromContext(ctx)
	e.Run, e.Attempt, e.Token = run, a.Number(), a.Token()
	return w.tell(ctx, e)
}

var errPlanned = errors.New("planned")

// phase has an effect in the world, two steps, three LLM calls, and its share of
// the plan's faults.
func (w *worker) phase(ctx context.Context, i int, s *state) error {
	name := phases[i]
	if s.Spec.Stubborn { // deaf to its context: only fences stop it
		ctx = context.WithoutCancel(ctx)
	}
	tell := func(kind, step string) error {
		return w.tellOf(ctx, s.Run, entry{Kind: kind, Phase: name, Step: step})
	}
	if err := tell(started, ""); err != nil {
		return err
	}
	var answers []string
	for _, call := range calls[:2] {
		a, err := checkpoint.Step(ctx, call, func(ctx context.Context) (string, error) {
			if err := tell(step, call); err != nil {
				return "", err
			}
			return w.ask(ctx, s.Run, name, call)
		})
		if err != nil {
			return err
		}
		answers = append(answers, a)
	}
	a, err := w.ask(ctx, s.Run, name, calls[2])
	if err != nil {
		return err
	}
	answers = append(answers, a)
	if err := w.toil(ctx, s.Spec, i); err != nil {
		return err
	}
	for _, a := range answers {
		if a == "" {
			return errors.New("an answer is empty")
		}
	}
	s.Done = append(s.Done, name)
	return tell(finished, "")
}

// toil takes its time, and fails where that is planned: once, which a kill may
// forestall, or for good.
func (w *worker) toil(ctx context.Context, spec runSpec, i int) error {
	select {
	case <-time.After(time.Duration(spec.Work[i]) * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if spec.Phase != phases[i] {
		return nil
	}
	if spec.Fault == "fatal" {
		return idempotent.Permanent(errPlanned)
	}
	if idempotent.MustFromContext(ctx).Number() > 1 {
		return nil
	}
	switch spec.Fault {
	case "error":
		return errPlanned
	case "limited":
		return idempotent.RateLimited(errPlanned, time.Second)
	case "panic":
		panic(errPlanned)
	}
	return nil
}

// ask is an LLM call; every other one is streamed. The answer is returned as a digest.
func (w *worker) ask(ctx context.Context, run, phase, call string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.Model+"chat/completions", bytes.NewReader(question(run, phase, call)))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", w.Name) // the server's record names who asked
	res, err := w.model.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("model: %s", res.Status)
	}
	sum := sha256.Sum256(answer)
	return hex.EncodeToString(sum[:8]), nil
}

// question is the body of a call: no two of a soak are alike.
func question(run, phase, call string) []byte {
	body, _ := json.Marshal(map[string]any{ // strings always encode
		"model": modelserver.Model, "stream": call == calls[1],
		"messages": []map[string]string{
			{"role": "system", "content": "phase: " + phase + "\ntask: risks"},
			{"role": "user", "content": fmt.Sprintf("<goal>%s, the %s question</goal>", run, call)},
		},
	})
	return body
}
