package llmcache

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nexuscore/onceq/internal/setting"
)

// Finish says how an answer ended.
type Finish int

const (
	// FinishComplete: the answer is whole, and stored. It is the zero value.
	FinishComplete Finish = iota
	// FinishLength: cut off by a limit. Stored for the run only.
	FinishLength
	// FinishRefused: the model or a filter declined. Stored only with WithRefusals.
	FinishRefused
	// FinishIncomplete: not all of the answer came. Never stored, and nobody else gets it.
	FinishIncomplete
)

// Answer is what one call brought.
type Answer[T any] struct {
	Value  T
	Usage  Usage
	Finish Finish
	Model  string // as the provider named it; names the price when Request.Model has none
}

// Do returns the answer to req: a stored one, or that of fn, which then makes the
// call. Inside a run an answer belongs to the run unless the context says
// otherwise (see [With]).
//
// Identical calls that meet are made once, in this process and across processes.
// fn runs under a context of its own: with the values of ctx, and cancelled only
// when nobody waits for the answer any longer. A panic of fn comes out of Do.
//
// An answer is stored when fn returned no error, the answer is FinishComplete and Value
// is not empty (nil, "", [] or {}). []byte and string are stored as they are,
// other types as JSON; what Do returns from the store is a new value.
//
// Errors: those of fn, unchanged; of ctx; *BudgetError; *MaybePaidError;
// ErrLeaseLost; and ErrInvalid, for a fn that is nil, a field of req that has no JSON
// form, or what With was given. Trouble with Redis is none: the call is made without
// the cache. With a nil c it always is.
func Do[T any](ctx context.Context, c *Cache, req Request, fn func(context.Context) (Answer[T], error)) (T, error) {
	var zero T
	if fn == nil {
		return zero, setting.Invalidf("Do: the function is nil")
	}
	if c == nil {
		a, err := fn(ctx)
		return a.Value, err
	}
	hash, err := req.hash()
	if err != nil {
		return zero, err
	}
	p, err := c.locate(ctx, hash, "")
	if err != nil {
		return zero, err
	}
	w := &call{place: p, model: req.Model, invoke: func(ctx context.Context, _ *flight) result {
		a, err := fn(ctx)
		return assess(c, p, req.Model, a, err)
	}}
	for {
		out := c.serve(ctx, w)
		if out.err != nil {
			return zero, out.err
		}
		if v, ok := out.value.(T); ok && out.led {
			return v, nil
		}
		v, err := decodeValue[T](out.rec)
		if err == nil {
			return v, nil
		}
		if w.refresh {
			return zero, fmt.Errorf("llmcache: the answer does not decode: %w", err)
		}
		c.discard(w, err)
		p.refresh = true
	}
}

// assess says what becomes of fn's answer.
func assess[T any](c *Cache, p *place, model string, a Answer[T], err error) result {
	if err != nil {
		stopped := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
		r := result{err: err, retry: stopped}
		if stopped {
			r.cost.Wasted.Calls = 1
		}
		return r
	}
	r := result{value: a.Value}
	sum := c.prices.sum(a.Usage, model, a.Model)
	r.cost.Paid = sum
	if r.rec, err = encodeValue(a.Value); err != nil {
		c.logger.Error("llmcache: an answer has no JSON form and is not stored", "run", p.run, "model", trim(model), "err", err)
		r.retry, r.rec = true, nil
		return r
	}
	r.rec.usage, r.rec.model = a.Usage, trim(a.Model)
	if a.Finish == FinishIncomplete {
		r.retry = true
		return r
	}
	r.whole = true
	r.store = !empty(r.rec) && (a.Finish != FinishLength || !p.shared()) && (a.Finish != FinishRefused || c.refusals)
	return r
}

// encodeValue copies v into a record. The static type decides, as it will when
// the record is read.
func encodeValue[T any](v T) (*record, error) {
	switch p := any(&v).(type) {
	case *[]byte:
		return &record{kind: kindBytes, body: bytes.Clone(*p)}, nil
	case *string:
		return &record{kind: kindBytes, body: []byte(*p)}, nil
	}
	body, err := json.Marshal(v)
	return &record{kind: kindJSON, body: body}, err
}

// decodeValue makes a new T of a record.
func decodeValue[T any](r *record) (T, error) {
	var v T
	if r == nil {
		return v, errRecord
	}
	want := kindBytes
	switch p := any(&v).(type) {
	case *[]byte:
		*p = bytes.Clone(r.body)
	case *string:
		*p = string(r.body)
	default:
		want = kindJSON
		if r.kind == kindJSON {
			if err := json.Unmarshal(r.body, &v); err != nil {
				var zero T
				return zero, err
			}
		}
	}
	if r.kind != want {
		var zero T
		return zero, fmt.Errorf("%w of this type", errRecord)
	}
	return v, nil
}

func empty(r *record) bool {
	if r.kind == kindBytes {
		return len(r.body) == 0
	}
	switch string(r.body) {
	case "null", `""`, "[]", "{}":
		return true
	}
	return false
}
