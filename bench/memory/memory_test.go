package memory

import (
	"os"
	"testing"
)

func TestField(t *testing.T) {
	t.Parallel()
	const rollup = "5500-7fff ---p 00000000 00:00 0 [rollup]\nRss:  900 kB\nPss:   123 kB\nPss_Anon:      45 kB\nName:\n"
	for name, want := range map[string]int64{"Pss:": 123, "Pss_Anon:": 45} {
		if got, ok := field(rollup, name); !ok || got != want {
			t.Errorf("%s %d, %v; want %d", name, got, ok, want)
		}
	}
	for _, name := range []string{"Pss", "Name:", "5500-7fff", "None:"} {
		if got, ok := field(rollup, name); ok {
			t.Errorf("%q: %d", name, got)
		}
	}
}

// TestMemory reads this process's memory, which works on Linux.
func TestMemory(t *testing.T) {
	t.Parallel()
	m := Read(os.Getpid())
	if m.Heap <= 0 {
		t.Errorf("this process: %+v", m)
	}
	if _, err := os.Stat("/proc/self/smaps_rollup"); err == nil && (m.Server <= m.ServerOwn || m.ServerOwn <= 0 || m.Resident < m.Heap/2) {
		t.Errorf("as a server: %+v", m)
	}
	if none := Read(-1); none.Server != -1 || none.ServerOwn != -1 {
		t.Errorf("a server that is not there: %+v", none)
	}
}
