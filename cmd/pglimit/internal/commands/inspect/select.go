// Package inspect has the subcommands for people who know a key and not its policies:
// top, find, block, unblock, reset and forget.
package inspect

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/replay"
	"github.com/pglimit/pglimit/limiter"
)

// keyHelp explains how these commands find a key.
const keyHelp = `KEY is looked up under every policy and algorithm that has rows; --name and
--algorithm select one. With PGLIMIT_KEY_SECRET, KEY is hashed first. --prefix is
then refused, because hashes keep no prefix. To pass a hash that top shows, unset
PGLIMIT_KEY_SECRET.`

// selection is the flags that select rows.
type selection struct {
	name, algorithm string
	prefix          bool
}

// registerFilter adds --name and --algorithm.
func (s *selection) registerFilter(cmd *cobra.Command) {
	var names []string
	for _, a := range limiter.Algorithms() {
		names = append(names, string(a))
	}
	cmd.Flags().StringVar(&s.name, "name", "", "only under the policy of this `name`; default: all")
	cmd.Flags().StringVar(&s.algorithm, "algorithm", "", "only of this algorithm: "+strings.Join(names, ", ")+"; default: all")
	_ = cmd.RegisterFlagCompletionFunc("algorithm", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// registerPrefix adds --prefix.
func (s *selection) registerPrefix(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.prefix, "prefix", false, "all keys that begin with KEY")
}

// policy returns a policy with the names in the flags, for the verbs that need no limit. An
// empty algorithm stays empty.
func (s *selection) policy() (limiter.Policy, error) {
	p := limiter.Policy{Name: s.name, Algorithm: limiter.Algorithm(s.algorithm), Limit: 1, Period: time.Minute}
	checked := p
	if s.name == "" {
		checked.Name = "any"
	}
	if s.algorithm == "" {
		checked.Algorithm = limiter.TokenBucket
	}
	return p, checked.Validate()
}

// filter returns the filter of the flags.
func (s *selection) filter() (inspect.Filter, error) {
	_, err := s.policy()
	return inspect.Filter{Policy: s.name, Algorithm: algorithm.Name(s.algorithm)}, err
}

// keys returns the stored form of KEY.
func (s *selection) keys(key string) (inspect.Keys, error) {
	switch secret := connect.KeySecret(); {
	case key == "":
		return inspect.Keys{}, errors.New("KEY is empty: pass a key, or with --prefix at least its first character")
	case s.prefix && secret != nil:
		return inspect.Keys{}, errors.New("--prefix does not work with " + connect.KeySecretEnv + ": keys are stored as hashes, which keep no prefix; pass whole keys")
	default:
		return inspect.Keys{Text: keys.Stored(key, secret), Prefix: s.prefix}, nil
	}
}

// subject returns KEY for a sentence.
func (s *selection) subject(key string) string {
	if s.prefix {
		return "keys that begin with " + replay.Shown(key)
	}
	return replay.Shown(key)
}

// where returns where KEY was looked up, for a sentence.
func (s *selection) where() string {
	switch {
	case s.name != "" && s.algorithm != "":
		return "under policy " + s.name + ", algorithm " + s.algorithm
	case s.name != "":
		return "under policy " + s.name
	case s.algorithm != "":
		return "under any policy, algorithm " + s.algorithm
	}
	return "under any policy"
}

// open opens the database. Call done when it is not needed any more.
func open(cmd *cobra.Command, db *connect.Database) (i *inspect.Inspector, done func(), err error) {
	pool, err := db.Open(cmd)
	if err != nil {
		return nil, nil, err
	}
	return inspect.New(pool), pool.Close, nil
}

// failed returns an inspector's error with its exit code.
func failed(err error) error { return cli.LimiterError(err) }
