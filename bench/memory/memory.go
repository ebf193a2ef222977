// Package memory reads how much memory this process and a server use.
package memory

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Use is the bytes in use at one moment; -1 if the system does not report them.
type Use struct {
	Heap     int64 // this process: live heap
	Resident int64 // this process: what it has in the machine's memory
	// The server's processes: their share of the memory they have (what n processes share
	// counts an n-th for each), and how much of it is neither file-backed nor shared.
	Server, ServerOwn int64
}

// Read reads the memory in use; postmaster is the server's first process.
func Read(postmaster int) Use {
	// Twice, so that the heap is what is in use: pools of spare objects are freed by the
	// second collection.
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m := Use{Heap: int64(s.HeapInuse), Resident: -1, Server: -1, ServerOwn: -1}
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		if kB, ok := field(string(status), "VmRSS:"); ok {
			m.Resident = 1024 * kB
		}
	}
	if all, own, err := treeMemory(postmaster); err == nil {
		m.Server, m.ServerOwn = all, own
	}
	return m
}

// treeMemory adds up the memory of a process and its children.
func treeMemory(parent int) (all, own int64, err error) {
	statuses, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return 0, 0, err
	}
	for _, path := range statuses {
		dir := filepath.Dir(path)
		status, err := os.ReadFile(path)
		if err != nil { // it has ended
			continue
		}
		above, ok := field(string(status), "PPid:")
		if pid := filepath.Base(dir); !ok || above != int64(parent) && pid != strconv.Itoa(parent) {
			continue
		}
		rollup, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
		if _, gone := os.Stat(dir); os.IsNotExist(gone) {
			continue
		}
		if err != nil {
			return 0, 0, err
		}
		pss, ok1 := field(string(rollup), "Pss:")
		anonymous, ok2 := field(string(rollup), "Pss_Anon:")
		if !ok1 || !ok2 {
			return 0, 0, fmt.Errorf("%s has no Pss", dir)
		}
		all, own = all+1024*pss, own+1024*anonymous
	}
	if all == 0 {
		return 0, 0, fmt.Errorf("no process %d", parent)
	}
	return all, own, nil
}

// Parent returns a process's parent; 0 if the system does not report it.
func Parent(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	parent, _ := field(string(status), "PPid:")
	return int(parent)
}

// field finds the number after a name at the start of a line.
func field(text, name string) (int64, bool) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) > 1 && words[0] == name {
			n, err := strconv.ParseInt(words[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
