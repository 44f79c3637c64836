package checkpoint

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/nexuscore/onceq/internal/setting"
)

// MaxNameLen is how many bytes the name of a phase or a step may have, for programs
// that make names from data.
const MaxNameLen = 256

const maxPhases = 1000 // in a list

// Validate returns the error with which [Run] would refuse its arguments, or nil.
// Call it at start: to a Run that is refused for these every attempt is the same.
func Validate[S any](store Store, phases []Phase[S], opts ...Option) error {
	_, err := bind(store, phases, opts)
	return err
}

// terms are what Run is given that is the same in every attempt.
type terms struct {
	store Store
	cfg   config
	count *counters
	names []string
}

func bind[S any](store Store, phases []Phase[S], opts []Option) (terms, error) {
	t := terms{store: store, cfg: defaults(), names: make([]string, len(phases))}
	for i, p := range phases {
		t.names[i] = p.Name
		if p.Run == nil {
			return t, setting.Invalidf("phases[%d] %q: Run is nil", i, p.Name)
		}
	}
	if err := validNames(t.names); err != nil {
		return t, err
	}
	if setting.IsNil(store) {
		return t, setting.Invalidf("store is nil; without a key in ctx nothing is stored, but a store is needed all the same")
	}
	if s, ok := store.(instrumented); ok {
		t.cfg, t.count = s.shared()
	} else {
		t.count = new(counters)
	}
	if len(opts) == 0 {
		return t, nil
	}
	if err := t.cfg.apply(opts); err != nil {
		return t, err
	}
	if t.cfg.breaker != nil {
		return t, setting.Invalidf("WithBreaker is an option of NewRedisStore, not of Run")
	}
	return t, nil
}

func validName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > MaxNameLen:
		return fmt.Errorf("the name has %d bytes, at most %d are allowed", len(name), MaxNameLen)
	case !utf8.ValidString(name):
		return fmt.Errorf("the name %q is not valid UTF-8", name)
	}
	return nil
}

func validNames(names []string) error {
	if n := len(names); n == 0 || n > maxPhases {
		return setting.Invalidf("phases: %d given, 1 to %d are allowed", n, maxPhases)
	}
	seen := make(map[string]int, len(names))
	for i, name := range names {
		if err := validName(name); err != nil {
			return setting.Invalidf("phases[%d]: %v", i, err)
		}
		if first, ok := seen[name]; ok {
			return setting.Invalidf("phases[%d]: the name %q is that of phases[%d] too", i, name, first)
		}
		seen[name] = i
	}
	return nil
}
