package processor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of times in /proc, the same on every platform of Go.
const tick = 10 * time.Millisecond

// process is one process's line in /proc.
type process struct {
	parent int
	used   time.Duration // by its threads, to a tick
	waited time.Duration // by children that have ended, and theirs, to a tick
}

// tree adds up the time of a process and its descendants. A process that ended is in its
// parent's sum of waited-for children. If one ends between two readings it would be counted
// twice or not at all, so the sum is read again until none ended meanwhile.
func tree(root int) (time.Duration, error) {
	const tries = 10
	for try := 1; ; try++ {
		before, err := read(root)
		if err != nil {
			return 0, err
		}
		sum, err := treeOnce(root)
		if err != nil {
			return 0, err
		}
		after, err := read(root)
		if err != nil {
			return 0, err
		}
		if before.waited == after.waited || try == tries {
			return sum, nil
		}
	}
}

func treeOnce(root int) (time.Duration, error) {
	processes, err := readAll()
	if err != nil {
		return 0, err
	}
	if _, ok := processes[root]; !ok {
		return 0, fmt.Errorf("no process %d", root)
	}
	var sum time.Duration
	for pid, p := range processes {
		if descends(processes, pid, root) {
			sum += exact(pid, p.used) + p.waited
		}
	}
	return sum, nil
}

// descends reports whether pid is root or below it.
func descends(processes map[int]process, pid, root int) bool {
	for range processes { // parents that changed during the reading may form a circle
		if pid == root {
			return true
		}
		p, ok := processes[pid]
		if !ok {
			return false
		}
		pid = p.parent
	}
	return false
}

// exact returns the time of a process to the nanosecond, or what /proc had if the process
// has ended. Ticks of many processes would add up to several percent of a short cell.
func exact(pid int, ticks time.Duration) time.Duration {
	// The kernel's clock of a process: its number inverted, and 2 for scheduled time.
	clock := int32(^pid<<3 | 2)
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		return ticks
	}
	return time.Duration(t.Nano())
}

func readAll() (map[int]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	all := map[int]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, err := read(pid); err == nil { // otherwise it has ended
			all[pid] = p
		}
	}
	return all, nil
}

func read(pid int) (process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	return parse(string(text))
}

// parse reads a line of /proc/PID/stat. The program's name, which may hold spaces and
// parentheses, is the second field.
func parse(line string) (process, error) {
	const first, ppid, utime, stime, cutime, cstime = 3, 4, 14, 15, 16, 17 // as proc(5) numbers them
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	var n [cstime + 1]int
	for _, i := range []int{ppid, utime, stime, cutime, cstime} {
		if i-first >= len(fields) {
			return process{}, fmt.Errorf("/proc: %q has no field %d", line, i)
		}
		var err error
		if n[i], err = strconv.Atoi(fields[i-first]); err != nil {
			return process{}, fmt.Errorf("/proc: %q: field %d: %w", line, i, err)
		}
	}
	return process{
		parent: n[ppid],
		used:   time.Duration(n[utime]+n[stime]) * tick,
		waited: time.Duration(n[cutime]+n[cstime]) * tick,
	}, nil
}

// Parent returns a process's parent.
func Parent(pid int) (int, error) {
	p, err := read(pid)
	return p.parent, err
}
