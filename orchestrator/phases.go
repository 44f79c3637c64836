package orchestrator

import (
	"context"

	"github.com/nexuscore/onceq/checkpoint"
)

// PhaseRunner is an orchestration of the seven usual phases over a state S. Each
// method does one phase and changes the state in place; the state is saved
// after each. A phase that was under way when its worker died is run again,
// minus its checkpoint.Step calls and its LLM calls that had an answer.
type PhaseRunner[S any] interface {
	Context(ctx context.Context, state *S) error
	Requirements(ctx context.Context, state *S) error
	Planning(ctx context.Context, state *S) error
	Architecture(ctx context.Context, state *S) error
	Implementation(ctx context.Context, state *S) error
	Testing(ctx context.Context, state *S) error
	Review(ctx context.Context, state *S) error
}

// Phases lists the seven phases of a runner in their order, under the names
// context, requirements, planning, architecture, implementation, testing and
// review. The list may be changed before it is used.
func Phases[S any](r PhaseRunner[S]) []checkpoint.Phase[S] {
	return []checkpoint.Phase[S]{
		{Name: "context", Run: r.Context},
		{Name: "requirements", Run: r.Requirements},
		{Name: "planning", Run: r.Planning},
		{Name: "architecture", Run: r.Architecture},
		{Name: "implementation", Run: r.Implementation},
		{Name: "testing", Run: r.Testing},
		{Name: "review", Run: r.Review},
	}
}
