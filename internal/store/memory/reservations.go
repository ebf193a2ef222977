package memory

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// reservations has the reservations of one process. Its lock is taken before the shards'
// locks.
type reservations struct {
	mu           sync.Mutex
	most         int   // number of records
	full         error // of a request to store one more
	byID         map[store.ReservationID]*record
	byIdempotent map[idempotent]*record
	open         map[entryKey]map[*record]bool
	estimates    map[entryKey][]*record // the last of those that were settled, the newest first
	ages         ageOrder
}

// idempotent identifies an admission under an idempotency key.
type idempotent struct {
	entryKey
	key string
}

// record is a reservation with the fields that only this store keeps.
type record struct {
	store.Reservation
	idempotency string          // as stored; empty for none
	parts       []algorithm.Lot // of a balance
	estimate    float64
	forgetAt    int64
	place       int    // in ages
	pins        *entry // that counts the reservation as open; nil: none
}

func newReservations(most int) reservations {
	return reservations{
		most: most, full: fmt.Errorf("%w: it remembers %d reservations and admissions: raise Config.MaxKeys or lower Config.IdempotencyTTL", store.ErrFull, most),
		byID: map[store.ReservationID]*record{}, byIdempotent: map[idempotent]*record{},
		open: map[entryKey]map[*record]bool{}, estimates: map[entryKey][]*record{},
	}
}

func (h *record) entryKey() entryKey { return entryKey{h.Algorithm, h.Policy, h.Key} }

// reserve takes what fits by take, whose reservation lasts for a time to live, and stores the
// admission, unless it was admitted before.
func (m *Store) reserve(q *store.Query, a *store.Admission, take func(ttl int64) (store.Outcome, *entry, error)) (store.Outcome, error) {
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	now := clock(q.Now)
	m.forget(now)
	switch before, err := m.before(q, a, now); {
	case err != nil || before != nil:
		return store.Outcome{Before: before}, err
	case !q.Possible():
		return m.get(q)
	}
	if len(m.reservations.byID) >= m.reservations.most {
		return store.Outcome{}, m.reservations.full
	}
	ttl := int64(0)
	if a.State == store.Open {
		ttl = a.TTL
	}
	o, pinned, err := take(ttl)
	if err == nil && o.Granted > 0 {
		m.admit(q, a, o, pinned)
	}
	return o, err
}

// before returns the admission under the same idempotency key, if there is one. If it need not be
// remembered or has expired, the key may be used again. The reservations are locked.
func (m *Store) before(q *store.Query, a *store.Admission, now int64) (*store.Reservation, error) {
	_, k := m.shard(q)
	before := m.reservations.byIdempotent[idempotent{k, a.Idempotency}]
	switch {
	case a.Idempotency == "" || before == nil:
	case before.forgetAt > now && !before.Overdue(now):
		return new(before.Reservation), nil
	case !q.Possible():
	case before.forgetAt <= now:
		m.drop(before, now)
	default:
		_, err := m.end(before, store.Expired, 0, now)
		return nil, err
	}
	return nil, nil
}

// admit stores the admission of what was granted. pinned is the entry that counts it as an open
// reservation. The reservations are locked.
func (m *Store) admit(q *store.Query, a *store.Admission, o store.Outcome, pinned *entry) {
	_, k := m.shard(q)
	reserved := float64(q.Cost * o.Granted)
	n := &record{
		Reservation: store.Reservation{
			ReservationID: store.ReservationID{Algorithm: q.Algorithm, Policy: q.Policy, Key: q.Key, ID: a.ID},
			Rules:         q.Rules, Limit: a.Limit, State: a.State,
			Reserved: reserved, Units: reserved, Requested: a.Requested, Level: o.View.Level(&q.Rules, o.UpdatedAt),
			CountedAt: o.UpdatedAt, CreatedAt: o.UpdatedAt, ExpiresAt: o.UpdatedAt + a.TTL,
		},
		idempotency: strings.Clone(a.Idempotency), forgetAt: o.UpdatedAt + a.TTL + a.Remember, pins: pinned,
	}
	if o.Granted == q.Count {
		n.estimate = a.Estimate
	}
	n.Key = strings.Clone(n.Key) // it may be a part of a large text
	k.key = n.Key
	if v, ok := o.View.(algorithm.AccountView); ok {
		n.parts = v.Parts
	}
	if g := o.View.Counted(o.UpdatedAt); g.At != 0 {
		n.CountedAt = g.At
	} else {
		n.EndsAt = g.EndsAt
	}
	m.reservations.byID[n.ReservationID] = n
	heap.Push(&m.reservations.ages, n)
	if n.State == store.Open {
		if m.reservations.open[k] == nil {
			m.reservations.open[k] = map[*record]bool{}
		}
		m.reservations.open[k][n] = true
	}
	if n.idempotency != "" {
		m.reservations.byIdempotent[idempotent{k, n.idempotency}] = n
	}
}

// settle ends a reservation.
func (m *Store) settle(op *store.Op) (*store.Ended, error) {
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	h, now, err := m.found(op)
	if err != nil {
		return nil, err
	}
	e, err := m.end(h, op.State, op.Units, now)
	return &e, err
}

// found returns the reservation of a Settle.
func (m *Store) found(op *store.Op) (h *record, now int64, err error) {
	id := op.Reservation()
	h, now = m.reservations.byID[id], clock(op.Now)
	if h == nil || h.State == store.Spent || h.State == store.Granted || h.forgetAt <= now && op.State != store.Expired {
		err = fmt.Errorf("%w: %s", store.ErrNoReservation, store.Quote(id.Public()))
	}
	return h, now, err
}

// settleAll ends several reservations, or none.
func (m *Store) settleAll(ends []*store.Op) error {
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	for _, op := range ends {
		h, now, err := m.found(op)
		if err != nil {
			return err
		}
		op.Ended = &store.Ended{Reservation: h.Reservation, Changed: h.Changes(op.State, now)}
		if err := op.Conflict(store.Quote(op.Reservation().Public())); err != nil {
			return err
		}
	}
	for _, op := range ends {
		e, err := m.end(m.reservations.byID[op.Reservation()], op.State, op.Units, clock(op.Now))
		if op.Ended = &e; err != nil {
			return err
		}
	}
	return nil
}

// end brings a reservation to a state and changes the key's units accordingly. The
// reservations are locked. The error is a store.ErrFull if the key was forgotten and more
// was spent than reserved; then nothing was changed.
func (m *Store) end(h *record, state store.State, units float64, now int64) (store.Ended, error) {
	s := store.Ended{Reservation: h.Reservation, Now: now}
	s.Changed = h.Changes(state, now)
	back := 0.0
	moves := s.Changed && units != h.Units && (h.Algorithm != algorithm.FixedWindow || h.EndsAt > now)
	q := store.Query{Rules: h.Rules, Algorithm: h.Algorithm, Policy: h.Policy, Key: h.Key, Now: &now}
	change := func(e *entry, now, at int64) float64 {
		if moves {
			fresh := e.rules.Capacity == 0 // or made only by a block
			if fresh {
				e.rules = h.Rules
			}
			back = e.state.Settle(&e.rules, now, at, algorithm.Reservation{Rules: h.Rules, Units: h.Units, CountedAt: h.CountedAt, EndsAt: h.EndsAt, Parts: h.parts}, units, fresh)
			e.updatedAt = at
		}
		s.Outcome = e.standing(&q, now, at, 0)
		return 0
	}
	_, err := m.with(&q, moves, change)
	if err != nil && units <= h.Units { // a forgotten key has nothing to give back
		_, err = m.with(&q, false, change)
	}
	if err != nil || !s.Changed {
		return s, err
	}
	m.unpin(h)
	s.Freed = back > 0
	h.State = state
	delete(m.reservations.open[h.entryKey()], h)
	if len(m.reservations.open[h.entryKey()]) == 0 {
		delete(m.reservations.open, h.entryKey())
	}
	if state == store.Settled {
		h.Units = units
		m.reservations.learn(h)
		return s, nil
	}
	h.Units -= back
	if h.idempotency != "" { // the request may be made again
		delete(m.reservations.byIdempotent, idempotent{h.entryKey(), h.idempotency})
		h.idempotency = ""
	}
	return s, nil
}

// learn keeps a settled estimate, if it is one of the key's last ones.
func (r *reservations) learn(h *record) {
	if h.estimate == 0 {
		return
	}
	all := r.estimates[h.entryKey()]
	i := slices.IndexFunc(all, func(o *record) bool { return o.CreatedAt <= h.CreatedAt })
	if i < 0 {
		i = len(all)
	}
	all = slices.Insert(all, i, h)
	r.estimates[h.entryKey()] = all[:min(len(all), store.MaxEstimates)]
}

// estimate returns what the key's next estimate is multiplied by.
func (m *Store) estimate(q *store.Query) float64 {
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	n, spent, estimated, now := 0, 0.0, 0.0, clock(q.Now)
	for _, h := range m.reservations.estimates[entryKey{q.Algorithm, q.Policy, q.Key}] {
		if h.forgetAt > now {
			n, spent, estimated = n+1, spent+h.Units, estimated+h.estimate
		}
	}
	return store.Factor(n, spent, estimated)
}

// unpin makes the key's entry count a reservation as open no longer.
func (m *Store) unpin(h *record) {
	e := h.pins
	if e == nil {
		return
	}
	h.pins = nil
	s := &m.shards[m.shardOf(&e.key)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.open--; e.open == 0 {
		e.reservedUntil = 0
	}
	switch {
	case s.entries[e.key] != e: // forgotten since
	case e.blank && e.open == 0:
		s.remove(e)
		m.free.Add(1)
	default:
		s.changed(e)
	}
}

// due lists the key's open reservations that have expired, the first to expire first.
func (m *Store) due(q *store.Query) []string {
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	now := clock(q.Now)
	var due []*record
	for h := range m.reservations.open[entryKey{q.Algorithm, q.Policy, q.Key}] {
		if h.ExpiresAt <= now {
			due = append(due, h)
		}
	}
	slices.SortFunc(due, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.ExpiresAt, b.ExpiresAt), cmp.Compare(a.Units, b.Units))
	})
	due = due[:min(len(due), store.MaxDue)]
	ids := make([]string, len(due))
	for i, h := range due {
		ids[i] = h.ID
	}
	return ids
}

// nextDue returns the time until the next open reservation expires.
func (m *Store) nextDue() int64 {
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	now, wait := clock(nil), int64(store.NoneDue)
	for _, open := range m.reservations.open {
		for h := range open {
			wait = min(wait, h.ExpiresAt-now)
		}
	}
	return wait
}

// maxForget is the number of records that a Reserve forgets: more than it adds, and few
// enough to take no time.
const maxForget = 8

// forget drops records that need not be remembered any longer, the oldest first, if there
// are many. The reservations are locked.
func (m *Store) forget(now int64) {
	r := &m.reservations
	for range maxForget {
		if len(r.ages) < min(minSweep, r.most) || r.ages[0].forgetAt > now {
			return
		}
		m.drop(r.ages[0], now)
	}
}

// drop forgets one reservation and gives back the units that it still counts.
func (m *Store) drop(h *record, now int64) {
	_, _ = m.end(h, store.Expired, 0, now) // adds nothing, so that there is always a place
	heap.Remove(&m.reservations.ages, h.place)
	delete(m.reservations.byID, h.ReservationID)
	if h.idempotency != "" {
		delete(m.reservations.byIdempotent, idempotent{h.entryKey(), h.idempotency})
	}
	if all := m.reservations.estimates[h.entryKey()]; h.estimate != 0 {
		if all = slices.DeleteFunc(all, func(o *record) bool { return o == h }); len(all) > 0 {
			m.reservations.estimates[h.entryKey()] = all
		} else {
			delete(m.reservations.estimates, h.entryKey())
		}
	}
}

// usage returns the key's state with its open reservations.
func (m *Store) usage(q *store.Query) (u store.Usage, err error) {
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	u.Outcome, err = m.with(q, false, func(e *entry, _, at int64) float64 {
		if a, ok := e.state.(*algorithm.Account); ok {
			u.Account = a.At(at)
		}
		return 0
	})
	if err != nil {
		return u, err
	}
	w, windowed := u.Outcome.View.(*algorithm.Window)
	for h := range m.reservations.open[entryKey{q.Algorithm, q.Policy, q.Key}] {
		if !windowed || h.EndsAt == w.EndsAt && h.EndsAt > u.Outcome.Now {
			u.Reservations++
			u.Reserved += h.Units
		}
	}
	return u, nil
}

// ageOrder is a heap of records, the first to be forgotten first.
type ageOrder []*record

func (o ageOrder) Len() int           { return len(o) }
func (o ageOrder) Less(i, j int) bool { return o[i].forgetAt < o[j].forgetAt }
func (o ageOrder) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].place, o[j].place = i, j
}

func (o *ageOrder) Push(x any) {
	h := x.(*record)
	h.place = len(*o)
	*o = append(*o, h)
}

func (o *ageOrder) Pop() any {
	last := len(*o) - 1
	h := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return h
}
