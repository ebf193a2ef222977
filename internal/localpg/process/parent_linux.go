package process

import "syscall"

// endWithParent has the kernel shut the server down, at once but in order,
// when the thread that started it ends.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGQUIT }
