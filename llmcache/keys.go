package llmcache

import (
	"encoding/hex"
	"strconv"

	"github.com/nexuscore/onceq/internal/canonical"
	"github.com/nexuscore/onceq/internal/lease"
	"github.com/nexuscore/onceq/internal/runkey"
	"github.com/nexuscore/onceq/internal/scope"
)

// Redis keys. A changed key is a data migration: see the golden tests.
//
//	<prefix>:{<run>}:llm                   ledger of a run
//	<prefix>:{<run>}:llm:flights           in-flight records of its calls
//	<prefix>:{<run>}:llm:<slot>            answer of a call of the run
//	<prefix>:llm:{<call>}:t:<tenant>       answer that runs share
//	<prefix>:llm:{total}                   ledger of the prefix
//	<answer>:lease, <answer>:once:<owner>  lease of the call; mark of a counted hit

func (s Slot) lease() string            { return s.Key + ":lease" }
func (s Slot) once(owner string) string { return s.Key + ":once:" + owner }

func (s Slot) flights() string {
	if s.Book == "" {
		return s.Key + ":flights"
	}
	return s.Book + ":flights"
}

func (s Slot) withBook(keys []string) []string {
	if s.Book == "" {
		return keys
	}
	return append(keys, s.Book)
}

func bookKey(base string) string    { return base + ":llm" }
func totalKey(prefix string) string { return prefix + ":llm:{total}" }

// sharedSlot is where runs of one tenant share the answer of a call.
func sharedSlot(prefix, tenant string, call [32]byte) Slot {
	id := hex.EncodeToString(call[:])
	return Slot{Key: prefix + ":llm:{" + id + "}:t:" + runkey.Escape(tenant), ID: id}
}

// runSlot is where a run finds the answer of its nth such call at this place. The
// names of phases and steps are hashed: they may be long, and many.
func runSlot(l *lease.Lease, at *scope.Scope, tenant, label string, call [32]byte, n int) Slot {
	h := canonical.NewHasher("onceq llm slot v1")
	h.WriteString(strconv.Itoa(l.Generation))
	h.WriteString(at.Phase)
	h.WriteString(at.Step)
	h.WriteString(tenant)
	h.WriteString(label)
	h.Write(call[:])
	h.WriteString(strconv.Itoa(n))
	sum := h.Sum()
	id, book := hex.EncodeToString(sum[:]), bookKey(l.Base)
	return Slot{Key: book + ":" + id, ID: id, Book: book}
}

// ordinalHash is what makes calls identical when they are counted.
func ordinalHash(tenant, label string, call [32]byte) [32]byte {
	h := canonical.NewHasher("onceq llm ordinal v1")
	h.WriteString(tenant)
	h.WriteString(label)
	h.Write(call[:])
	return h.Sum()
}
