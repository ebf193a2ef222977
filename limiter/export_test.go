package limiter

// ForgetIdle has a memory limiter forget the keys that hold nothing, which it does by
// itself when it has grown.
func ForgetIdle(l *Limiter) {
	m := l.engine.store.(*memory)
	now := memoryClock(l.engine.now())
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		s.sweepAt = 0
		s.sweep(now)
		s.mu.Unlock()
	}
}
