//go:build unix

package history

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"unsafe"
)

// childKey is the environment's name of the ground's file. It makes the test's program a
// child.
const childKey = "PGLIMIT_HISTORY_GROUND"

// order tells a child what to play. The first one makes its process.
type order struct {
	URL     string
	Process int
	Seed    uint64
	Round   int
}

// played is a child's answer.
type played struct {
	Records []record
	Failure string
}

// child is a process of the operating system that plays the clients of one process.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	tell  *gob.Encoder
	told  *gob.Decoder
}

// startChild starts this program again, with the ground in a file.
func startChild(file string) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env, cmd.Stderr = append(os.Environ(), childKey+"="+file), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &child{cmd: cmd, stdin: in, tell: gob.NewEncoder(in), told: gob.NewDecoder(out)}, nil
}

// play lets the child play its part of a round.
func (c *child) play(o order) ([]record, error) {
	if err := c.tell.Encode(o); err != nil {
		return nil, err
	}
	var p played
	if err := c.told.Decode(&p); err != nil {
		return nil, fmt.Errorf("process %d: %w", o.Process, err)
	}
	if p.Failure != "" {
		return nil, fmt.Errorf("process %d: %s", o.Process, p.Failure)
	}
	return p.Records, nil
}

// end lets the child end.
func (c *child) end() error {
	_ = c.stdin.Close()
	return c.cmd.Wait()
}

// beChild plays what it is told until there is no more.
func beChild(file string, in io.Reader, out io.Writer) error {
	g, err := openGround(file)
	if err != nil {
		return err
	}
	orders, answers := gob.NewDecoder(in), gob.NewEncoder(out)
	var p *process
	for {
		var o order
		err := orders.Decode(&o)
		switch {
		case errors.Is(err, io.EOF):
			if p != nil {
				p.close()
			}
			return nil
		case err != nil:
			return err
		}
		var a played
		if p == nil {
			p, err = newProcess(o.URL, o.Process, g)
		}
		if err != nil {
			a.Failure = err.Error()
		} else {
			p.cut.Store(false)
			of := make([]*process, processes)
			of[o.Process] = p
			a.Records = play(drawRound(o.Seed, o.Round), o.Seed, of, g)
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// newGround makes the file of a ground in a folder, and returns both.
func newGround(folder string) (*ground, string, error) {
	file := filepath.Join(folder, "ground")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return nil, "", err
	}
	if err := os.Truncate(file, int64(unsafe.Sizeof(ground{}))); err != nil {
		return nil, "", err
	}
	g, err := openGround(file)
	return g, file, err
}

// openGround returns the ground of a file, which other processes may have open as well.
func openGround(file string) (*ground, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	memory, err := syscall.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(ground{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*ground)(unsafe.Pointer(&memory[0])), nil
}
