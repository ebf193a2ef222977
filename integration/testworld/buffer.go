package testworld

import (
	"bytes"
	"strings"
	"sync"
)

// Buffer collects what a log or a program writes, while others read it.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Count returns how often a text was written.
func (b *Buffer) Count(text string) int { return strings.Count(b.String(), text) }

// Take returns what was written, and forgets it.
func (b *Buffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.b.Reset()
	return b.b.String()
}
