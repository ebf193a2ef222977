// Held measures decisions while an application's transaction keeps one key's row locked
// most of the time. It starts a PostgreSQL server, prints a Markdown section and writes it
// to a file:
//
//	go run ./held          # in bench/; about a minute and a half
//	go run ./held -quick   # about 20 seconds; writes no file
//
// An error ends it without a report.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pglimit/pglimit/bench/servers"
)

// plan is the length of the measurements, and the report's file.
type plan struct {
	Quick          bool
	Warmup, Length time.Duration // of each measurement
	Out            string        // file for the report; "" for none
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, readFlags()); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "held:", err)
		os.Exit(1)
	}
}

// readFlags ends the program on wrong flags.
func readFlags() plan {
	p := plan{Warmup: time.Second, Length: 20 * time.Second}
	flag.BoolVar(&p.Quick, "quick", false, "measure 4 seconds instead of 20 each time, and write no file")
	flag.StringVar(&p.Out, "out", "held.md", "file to write the report to, none if empty")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "held: %q: no arguments are taken\n", flag.Arg(0))
		os.Exit(2)
	}
	if p.Quick {
		p.Length, p.Out = 4*time.Second, ""
	}
	return p
}

// run measures each pool size without and with a locked row, and reports.
func run(ctx context.Context, p plan) (err error) {
	server, err := servers.StartPostgres(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	r := report{plan: p, When: time.Now().UTC(), PostgreSQL: server.Version(), Settings: server.Settings()}
	if err := migrate(ctx, server.Pool); err != nil {
		return err
	}
	for _, connections := range pools {
		for _, held := range []bool{false, true} {
			fmt.Fprintf(os.Stderr, "held: %d connections, held: %v\n", connections, held)
			c := cell{Connections: connections, Held: held}
			if err := c.measure(ctx, server.Pool.Config(), p); err != nil {
				return err
			}
			r.Cells = append(r.Cells, c)
		}
	}
	text := r.markdown()
	fmt.Print(text)
	if p.Out == "" {
		return nil
	}
	return os.WriteFile(p.Out, []byte(text), 0o644)
}
