package webpage

import (
	"net"
	"strings"
	"testing"
)

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

func TestListen(t *testing.T) {
	t.Parallel()
	all, at, err := Listen(t.Context(), "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	port := portOf(all[0])
	if at != "http://localhost:"+port {
		t.Errorf("the URL is %s", at)
	}
	for _, l := range all {
		defer l.Close()
		if !l.Addr().(*net.TCPAddr).IP.IsLoopback() || portOf(l) != port {
			t.Errorf("listens on %v", l.Addr())
		}
	}
	for _, addr := range []string{"localhost:" + port, "127.0.0.1:" + port} {
		if _, _, err := Listen(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "localhost:0 selects any free port") {
			t.Errorf("%s again: %v", addr, err)
		}
	}
	for _, addr := range []string{"localhost", "8080", "", "[::1"} {
		if _, _, err := Listen(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "not of the form host:port, such as localhost:8080") {
			t.Errorf("%q: %v", addr, err)
		}
	}
	everywhere, at, err := Listen(t.Context(), ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere[0].Close()
	if at != "http://localhost:"+portOf(everywhere[0]) {
		t.Errorf("the URL of :0 is %s", at)
	}
	families := 1
	if six, err := net.Listen("tcp", "[::1]:0"); err == nil { // there is IPv6 here
		families = 2
		_ = six.Close()
	}
	if len(all) != families {
		t.Fatalf("listens on %d addresses, the first %v, want %d", len(all), all[0].Addr(), families)
	}
	// A port that another program uses on ::1 cannot be used.
	_ = all[0].Close()
	some, _, err := Listen(t.Context(), "localhost:"+port)
	if taken := families == 2; taken != (err != nil) {
		t.Errorf("another program has it on ::1: %v; got %v, %v", taken, some, err)
	}
	for _, l := range some {
		_ = l.Close()
	}
	if l, err := net.Listen("tcp", "127.0.0.1:"+port); err != nil {
		t.Errorf("the port was not released on IPv4: %v", err)
	} else {
		_ = l.Close()
	}
}
