package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
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

// Self is the Clock of this process, all threads included.
func Self() (time.Duration, error) {
	var r unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), err
}

// tree adds up the time of a process and its children. A process that ended is in its
// parent's sum of waited-for children. If one ends between two readings it would be counted
// twice or not at all, so the sum is read again until none ended meanwhile.
func tree(root int) (sum time.Duration, err error) {
	const tries = 10
	for range tries {
		before, err := read(root)
		if err != nil {
			return 0, err
		}
		sum = 0
		for pid, p := range family(root) {
			sum += exact(pid, p.used) + p.waited
		}
		after, err := read(root)
		if err != nil || before.waited == after.waited {
			return sum, err
		}
	}
	return sum, nil
}

// family returns a process and its children.
func family(root int) map[int]process {
	all := map[int]process{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // fails only on a bad pattern
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))                 // the pattern wants a digit first
		if p, err := read(pid); err == nil && (pid == root || p.parent == root) { // otherwise it has ended
			all[pid] = p
		}
	}
	return all
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
	var state string
	var n [14]int // fields 4 to 17, as proc(5) numbers them
	fields := []any{&state}
	for i := range n {
		fields = append(fields, &n[i])
	}
	if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ')')+1:], fields...); err != nil {
		return process{}, fmt.Errorf("/proc: %q: %w", line, err)
	}
	return process{n[0], time.Duration(n[10]+n[11]) * tick, time.Duration(n[12]+n[13]) * tick}, nil
}

// Parent returns a process's parent; 0 if there is no such process.
func Parent(pid int) int {
	p, _ := read(pid)
	return p.parent
}

// ReadMemory adds up the memory of a process and its children.
func ReadMemory(root int) (sum Memory, err error) {
	for pid := range family(root) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			if _, ended := read(pid); ended != nil {
				continue
			}
			return Memory{}, err
		}
		for line := range bytes.Lines(text) {
			var name string
			var kB int64
			_, _ = fmt.Sscan(string(line), &name, &kB) // the first line is none of these
			switch name {
			case "Rss:":
				sum.Resident += kB << 10
			case "Pss:":
				sum.Share += kB << 10
			case "Pss_Anon:":
				sum.Own += kB << 10
			}
		}
	}
	if sum.Own == 0 {
		return Memory{}, fmt.Errorf("the system reports no memory of process %d", root)
	}
	return sum, nil
}
