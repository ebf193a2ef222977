//go:build unix

package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminalSent tells whether a signal comes from the terminal's keys. Such a
// one has gone to the whole foreground group, the command included, which
// should not get it twice.
func terminalSent(s os.Signal) bool {
	if s != os.Interrupt && s != syscall.SIGQUIT {
		return false
	}
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false // we have none
	}
	defer terminal.Close()
	foreground, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}
