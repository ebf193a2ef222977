package main

import (
	"errors"
	"fmt"
	"log"
	"slices"
)

// photographer implements T outside tests: it collects failures, and cleans up.
type photographer struct {
	to       string // the directory of the pictures
	cleanups []func()
	errs     []error
}

// stopped is the value with which Fatalf panics.
type stopped struct{}

// work runs f and the cleanups, and returns the failures.
func (p *photographer) work(f func(*photographer)) error {
	p.attempt(func() { f(p) })
	for _, cleanup := range slices.Backward(p.cleanups) {
		p.attempt(cleanup)
	}
	return errors.Join(p.errs...)
}

func (p *photographer) attempt(f func()) {
	defer func() {
		if r := recover(); r != nil && r != (stopped{}) {
			panic(r)
		}
	}()
	f()
}

func (p *photographer) Helper()                         {}
func (p *photographer) Name() string                    { return "screenshots" }
func (p *photographer) Failed() bool                    { return len(p.errs) > 0 }
func (p *photographer) Cleanup(f func())                { p.cleanups = append(p.cleanups, f) }
func (p *photographer) Logf(format string, args ...any) { log.Printf(format, args...) }

func (p *photographer) Errorf(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

func (p *photographer) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	panic(stopped{})
}
