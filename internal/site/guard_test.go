package site

import "testing"

// TestKnownHost: a foreign host name is refused, unless the server listens on all
// addresses.
func TestKnownHost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		listening, header string
		known             bool
	}{
		{"localhost", "localhost:8080", true},
		{"localhost", "LOCALHOST", true},
		{"localhost", "127.0.0.1:1", true},
		{"localhost", "[::1]:8080", true},
		{"localhost", "[::1]", true},
		{"localhost", "evil.example:8080", false},
		{"localhost", "localhost.evil.example", false},
		{"localhost", "192.0.2.7:8080", false},
		{"localhost", "", false},
		{"127.0.0.1", "localhost:8080", true},
		{"192.0.2.7", "192.0.2.7:8080", true},
		{"192.0.2.7", "evil.example", false},
		{"limits.example", "Limits.Example:8080", true},
		{"limits.example", "evil.example", false},
		{"0.0.0.0", "anything.example", true},
		{"::", "anything.example", true},
		{"", "anything.example", true},
	} {
		if got := knownHost(c.listening, c.header); got != c.known {
			t.Errorf("listening on %q, Host %q: %v", c.listening, c.header, got)
		}
	}
}
