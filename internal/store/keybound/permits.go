package keybound

import (
	"context"
	"sync"

	"github.com/pglimit/pglimit/internal/store"
)

// count has this process's permits for new rows of a policy.
type count struct {
	mu        sync.Mutex
	left      int64         // permits
	until     int64         // when they end
	fullUntil int64         // until then there is no room
	block     int64         // of the last taking; it doubles while they are used within a second
	takenAt   int64         // the last taking
	taking    chan struct{} // not nil while a caller takes; closed when it has
}

// back gives an unused permit back to this process, for as long as the others last.
func (c *count) back(now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now < c.until {
		c.left++
	}
}

// permit returns the count that a permit is from, or nil if there is no room.
func (s *Store) permit(ctx context.Context, q *store.Query) (*count, error) {
	if s.tx { // it is given back if the transaction is rolled back
		op := &store.Op{Kind: store.Permit, Query: countOf(q), Permits: 1}
		if err := s.Store.Do(ctx, op); err != nil || op.Permits == 0 {
			return nil, err
		}
		return new(count), nil
	}
	c := s.count(q)
	c.mu.Lock()
	for {
		now := s.now()
		switch {
		case c.left > 0 && now < c.until:
			c.left--
			c.mu.Unlock()
			return c, nil
		case now < c.fullUntil:
			c.mu.Unlock()
			return nil, nil
		case c.taking == nil:
			return s.take(ctx, c, q, now)
		}
		taking := c.taking
		c.mu.Unlock()
		select {
		case <-taking:
		case <-ctx.Done():
			return nil, store.EndedContext(ctx)
		}
		c.mu.Lock()
	}
}

// room reports whether permit would return one. It takes none.
func (s *Store) room(ctx context.Context, q *store.Query) (bool, error) {
	c, now := s.count(q), s.now()
	c.mu.Lock()
	has, full := c.left > 0 && now < c.until, now < c.fullUntil
	c.mu.Unlock()
	if has || full {
		return has, nil
	}
	op := &store.Op{Kind: store.Permit, Query: countOf(q), Permits: -1}
	if err := s.Store.Do(ctx, op); err != nil || op.Permits > 0 {
		return err == nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fullUntil = s.now() + int64(fullFor)
	return false, nil
}

// take takes permits from the database, and returns c for the first of them. c.mu is locked,
// and free when it returns.
func (s *Store) take(ctx context.Context, c *count, q *store.Query, now int64) (*count, error) {
	if c.left > 0 || now-c.takenAt > int64(fullFor) {
		c.block = 0 // fewer are needed
	}
	c.block = min(max(1, 2*c.block), maxBlock, q.Bound.MaxKeys/100+1)
	op := &store.Op{Kind: store.Permit, Query: countOf(q), Permits: c.block}
	taking := make(chan struct{})
	c.left, c.takenAt, c.taking = 0, now, taking
	c.mu.Unlock()
	err := s.Store.Do(ctx, op)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taking = nil
	close(taking)
	switch {
	case err != nil:
		return nil, err
	case op.Permits == 0:
		c.fullUntil = s.now() + int64(fullFor)
		return nil, nil
	}
	c.left, c.until = op.Permits-1, now+int64(permitLife)
	return c, nil
}

// count returns the policy's count.
func (s *state) count(q *store.Query) *count {
	k := policy{q.Algorithm, q.Policy}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts[k]
	if c == nil {
		c = new(count)
		s.counts[k] = c
	}
	return c
}
