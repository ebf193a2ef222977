//go:build unix

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// detach protects the server from the terminal's Ctrl-C: the program that started it ends
// it.
func detach(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	endWithParent(cmd.SysProcAttr)
}

// RequestStop requests PostgreSQL's fast shutdown. Only systems other than Unix use the
// arguments: the program pg_ctl and the data directory.
func (p *Process) RequestStop(_ context.Context, _, _ string) error {
	err := p.cmd.Process.Signal(syscall.SIGINT)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// KillTree kills the postmaster and its children, and returns when they have ended.
func (p *Process) KillTree() error {
	if p.Ended() {
		return nil
	}
	// A stopped postmaster starts no children and does not release their process IDs, so
	// that no other process is killed.
	postmaster := p.cmd.Process
	if err := postmaster.Signal(syscall.SIGSTOP); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	var children []int
	err := poll(func() (bool, error) {
		table, err := processTable()
		if err != nil {
			return false, err
		}
		children = table.childrenOf(postmaster.Pid)
		return table[postmaster.Pid].state == 'T' || p.Ended(), nil
	})
	for _, pid := range children {
		if killErr := syscall.Kill(pid, syscall.SIGKILL); killErr != nil && killErr != syscall.ESRCH {
			err = errors.Join(err, fmt.Errorf("process %d: %w", pid, killErr))
		}
	}
	if killErr := postmaster.Kill(); killErr != nil && !errors.Is(killErr, os.ErrProcessDone) {
		return errors.Join(err, killErr)
	}
	<-p.done
	// Until the processes have ended, their shared memory prevents a new server from
	// starting.
	return errors.Join(err, poll(func() (bool, error) {
		table, err := processTable()
		if err != nil {
			return false, err
		}
		for _, pid := range children {
			if table.alive(pid) {
				return false, nil
			}
		}
		return true, nil
	}))
}

// poll calls f until it returns true or an error, for at most five seconds.
func poll(f func() (bool, error)) error {
	end := time.Now().Add(5 * time.Second)
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		ok, err := f()
		if ok || err != nil {
			return err
		}
		if time.Now().After(end) {
			return errors.New("its processes did not end within five seconds")
		}
		time.Sleep(delay)
	}
}

// processes is the system's process table by process ID.
type processes map[int]struct {
	parent int
	state  byte // R, S, T (stopped), Z (ended, not yet waited for), …
}

func (t processes) childrenOf(parent int) (pids []int) {
	for pid, p := range t {
		if p.parent == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (t processes) alive(pid int) bool {
	p, ok := t[pid]
	return ok && p.state != 'Z'
}

// processTable reads /proc or, without it, the output of ps.
func processTable() (processes, error) {
	table := processes{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// "PID (NAME) STATE PPID …", and NAME may have any characters.
		pid, rest := string(stat), string(stat)
		pid = pid[:strings.IndexByte(pid, ' ')]
		rest = rest[strings.LastIndexByte(rest, ')')+1:]
		table.add(pid, strings.Fields(rest), 1, 0)
	}
	if len(table) > 0 {
		return table, nil
	}
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			table.add(fields[0], fields, 1, 2)
		}
	}
	return table, nil
}

// add adds a process. parent and state are the indexes of these values in fields.
func (t processes) add(pidField string, fields []string, parent, state int) {
	if len(fields) <= max(parent, state) {
		return
	}
	pid, err1 := strconv.Atoi(pidField)
	ppid, err2 := strconv.Atoi(fields[parent])
	if err1 != nil || err2 != nil {
		return
	}
	e := t[pid]
	e.parent, e.state = ppid, fields[state][0]
	t[pid] = e
}
