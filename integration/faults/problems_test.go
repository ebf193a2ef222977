package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/pglimit/pglimit/limiter"
)

// documented are the errors that docs/library.md has for outages and overload, in the order
// in which they are looked for.
var documented = []struct {
	name string
	err  error
}{
	{"ErrLocked", limiter.ErrLocked}, {"ErrOverloaded", limiter.ErrOverloaded}, {"ErrRetryTx", limiter.ErrRetryTx},
	{"ErrUnavailable", limiter.ErrUnavailable}, {"deadline exceeded", context.DeadlineExceeded}, {"cancelled", context.Canceled},
}

// problems are the errors that callers met: those that a fault may cause by number, others
// by text.
type problems struct {
	mu    sync.Mutex
	first []string
	count int
	met   []int        // of documented
	tell  func(string) // to the parent of a program; nil elsewhere
}

// add reports what no fault may cause.
func (p *problems) add(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if p.count++; len(p.first) < 10 {
		p.first = append(p.first, text)
	}
	if p.tell != nil {
		p.tell(text)
	}
}

// meet counts an error that a fault may cause.
func (p *problems) meet(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.met == nil {
		p.met = make([]int, len(documented))
	}
	for i, d := range documented {
		if errors.Is(err, d.err) {
			p.met[i]++
			return
		}
	}
}

// hasMet reports whether a documented error was met.
func (p *problems) hasMet(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range p.met {
		if n > 0 && errors.Is(documented[i].err, err) {
			return true
		}
	}
	return false
}

// String lists the documented errors that were met.
func (p *problems) String() string {
	var all []string
	for i, n := range p.met {
		if n > 0 {
			all = append(all, fmt.Sprintf("%s %d", documented[i].name, n))
		}
	}
	return strings.Join(all, ", ")
}
