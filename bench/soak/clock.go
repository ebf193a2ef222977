package main

import "time"

// clock runs faster than the real one. It is the Config.Now of the limiter and of the
// janitor.
type clock struct {
	start time.Time
	speed int
}

// Now returns the clock's time.
func (c clock) Now() time.Time { return c.start.Add(time.Since(c.start) * time.Duration(c.speed)) }
