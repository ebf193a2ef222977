// Command llm answers prompts within each tenant's daily budget of tokens. It reserves the
// most that an answer may use, and settles with the tokens used. Copy from complete.go;
// fake.go stands in for a model.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// budget is the number of tokens that a tenant may use per day, in UTC.
var budget = limiter.Policy{Name: "tokens", Algorithm: limiter.FixedWindow, Limit: 500, Calendar: limiter.Day}

// newService returns what each process of the application has, and creates the tables.
func newService(ctx context.Context, url string, config *limiter.Config, model Model) (_ *service, end func(), err error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	if err := migrations.Up(ctx, pool); err != nil {
		pool.Close()
		return nil, nil, err
	}
	limits, err := limiter.New(pool, config)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return &service{limits, model}, pool.Close, nil
}

// tenant prints what one tenant does.
type tenant struct {
	io.Writer
	name, key string
	at        *service
}

func (t tenant) request(ctx context.Context, prompt string) error {
	var answer strings.Builder
	used, err := t.at.complete(ctx, &answer, t.key, prompt, 400)
	denied, ok := errors.AsType[*limiter.DeniedError](err)
	switch {
	case ok:
		fmt.Fprintf(t, "%-5s  %-22q  denied: %v tokens are left\n", t.name, prompt, denied.Result.Remaining)
	case err == nil || errors.Is(err, errModel):
		if err != nil {
			answer.WriteString("... " + err.Error())
		}
		fmt.Fprintf(t, "%-5s  %-22q  %s (%d tokens)\n", t.name, prompt, strings.TrimSpace(answer.String()), used)
	default:
		return err
	}
	return nil
}

func (t tenant) usage(ctx context.Context, title string) error {
	s, err := t.at.limits.Usage(ctx, budget, t.key)
	fmt.Fprintf(t, "%-5s  %-22s  %v spent, %v reserved, %v remaining\n", t.name, title, s.Spent, s.Reserved, s.Result.Remaining)
	return err
}

// job reserves units for an answer that another process finishes.
func (t tenant) job(ctx context.Context, other *service) error {
	hold, err := t.at.reserve(ctx, t.key, "a long report", 400)
	if err != nil {
		return err
	}
	return errors.Join(
		t.usage(ctx, "a job begins"),
		t.request(ctx, "is there room"),
		other.finish(ctx, hold.ID, 60),
		t.usage(ctx, "it ends elsewhere"),
		t.request(ctx, "is there room now"),
	)
}

// run has several tenants send prompts. A nil config means the defaults.
func run(ctx context.Context, url string, config *limiter.Config, out io.Writer) error {
	here, end, err := newService(ctx, url, config, fake)
	if err != nil {
		return err
	}
	defer end()
	other, end, err := newService(ctx, url, config, fake) // as if in another process
	if err != nil {
		return err
	}
	defer end()

	stamp := time.Now().Format(time.RFC3339Nano) // new tenants for each run
	tenant := func(name string) tenant { return tenant{out, name, limiter.JoinKey(name, stamp), here} }
	red, green, blue := tenant("red"), tenant("green"), tenant("blue")
	return errors.Join(
		red.job(ctx, other),
		red.usage(ctx, "at the end"),
		green.request(ctx, "to be or not to be"),
		green.request(ctx, "that is the question"),
		green.usage(ctx, "at the end"),
		blue.request(ctx, "fail at once"),
		blue.request(ctx, "to be or fail to be"),
		blue.usage(ctx, "at the end"),
	)
}

func main() {
	log.SetFlags(0)
	url := os.Getenv("DATABASE_URL")
	if err := run(context.Background(), url, nil, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
