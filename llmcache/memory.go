package llmcache

import (
	"container/list"
	"sync"
	"time"
)

// memory keeps the answers used last, up to a number of bytes. A nil memory keeps
// none.
type memory struct {
	most int

	mu    sync.Mutex // guards the fields below
	size  int
	byKey map[string]*list.Element
	used  *list.List // of *memoryItem, the latest in front
}

type memoryItem struct {
	key   string
	rec   *record
	size  int
	until time.Time
}

// itemOverhead is what an item takes beside its body, roughly.
const itemOverhead = 512

func newMemory(most int) *memory {
	if most <= 0 {
		return nil
	}
	return &memory{most: most, byKey: map[string]*list.Element{}, used: list.New()}
}

func (m *memory) get(key string) *record {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.byKey[key]
	if !ok {
		return nil
	}
	item := e.Value.(*memoryItem)
	if !time.Now().Before(item.until) {
		m.removeLocked(e)
		return nil
	}
	m.used.MoveToFront(e)
	return item.rec
}

func (m *memory) put(key string, rec *record, ttl time.Duration) {
	if m == nil || ttl <= 0 {
		return
	}
	size := len(rec.body) + len(rec.cuts)*16 + len(key) + itemOverhead
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, ok := m.byKey[key]; ok {
		m.removeLocked(e)
	}
	if size > m.most {
		return
	}
	m.byKey[key] = m.used.PushFront(&memoryItem{key, rec, size, time.Now().Add(ttl)})
	m.size += size
	for m.size > m.most {
		m.removeLocked(m.used.Back())
	}
}

func (m *memory) removeLocked(e *list.Element) {
	item := m.used.Remove(e).(*memoryItem)
	delete(m.byKey, item.key)
	m.size -= item.size
}

func (c *Cache) remember(key string, rec *record, ttl time.Duration) { c.memory.put(key, rec, ttl) }

// remembered answers from the process's own memory.
func (c *Cache) remembered(w *call) (*record, bool) {
	if w.refresh || w.bypass || c.off {
		return nil, false
	}
	rec := c.memory.get(w.slot.Key)
	if rec == nil {
		return nil, false
	}
	c.counts.hits.Add(1)
	c.count(w.place, Account{Saved: c.prices.sum(rec.usage, w.model, rec.model)})
	return rec, true
}
