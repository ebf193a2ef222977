package policy

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/human"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/internal/replay"
	"github.com/pglimit/pglimit/limiter"
)

// slot is the time by which denials are kept.
const slot = 10 * time.Minute

func newSuggest(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "suggest NAME",
		Short: "Suggest a limit from the denials on record",
		Long: `Suggest a limit for the policy NAME from the units that it denied, and show how it
is computed. Of a shadow policy only the denials count that it let pass. Nothing
is changed: the answer ends with the command that sets the limit.

Programs keep denials with limiter.DenialLog, by key and ten minutes, and the
janitor deletes them after a day, unless its KeepDenials is longer. For each key
that was denied, the units denied in its busiest ten minutes count. For a period
above ten minutes it is the busiest period, and for a calendar the busiest of its
periods. The 99.9th percentile of these keys and what the policy grants in that
time are the demand. The limit is 1.25 times the demand per period, rounded up.

It is an estimate:

  - It is an upper bound for requests that come evenly. A denied request that is
    sent again counts each time.
  - It does not know bursts within ten minutes. For a shorter period "at once" is
    the most that came at once, if all units denied in these ten minutes did: a
    window needs it as its --limit, and a bucket as its --burst.
  - Denials from before the last change of the policy count too.
  - Keys with an override of the limit and denials without a key are left out.

Exit code 1: there is no such policy, or no denial of it on record.`,
		Example: `  pglimit policy suggest login
  pglimit policy suggest login --json | jq -r .suggestion.command`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithPoolAndPolicies(cmd, func(pool *pgxpool.Pool, policies *limiter.Policies) error {
				p := find(policies, args[0])
				if p == nil {
					return missing(cmd, out, args[0])
				}
				q := inspect.PeaksQuery{Policy: p.Name, Algorithm: algorithm.Name(p.Algorithm), Shadowed: p.Shadow, Window: p.Period}
				if p.Calendar != "" {
					var err error
					if q.Calendar, err = algorithm.CalendarOf(algorithm.Unit(p.Calendar), p.TimeZone); err != nil {
						return &limiter.PolicyError{Field: "TimeZone", Value: p.TimeZone, Reason: err.Error()}
					}
				}
				peaks, err := inspect.New(pool).Peaks(cmd.Context(), q)
				if err != nil {
					return cli.LimiterError(err)
				}
				a := answerOf(p, peaks)
				return out.Answer(cmd, a.Suggestion != nil, a, a.text(p))
			})
		},
	}
}

// suggestAnswer is the answer of suggest in JSON.
type suggestAnswer struct {
	Policy         policyfile.Policy `json:"policy"`
	Denials        int64             `json:"denials"` // that count
	KeysDenied     int64             `json:"keys_denied"`
	Keys           int64             `json:"keys"` // with a row under the policy
	KeysOverridden int64             `json:"keys_overridden"`
	WithoutKey     int64             `json:"denials_without_key"`
	Suggestion     *suggestion       `json:"suggestion"` // null without denials
}

// suggestion is a limit and how it was computed. All but Headroom are units.
type suggestion struct {
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Window   string    `json:"window"` // that denials are added up over: ten minutes, or the policy's period
	Denied   quantiles `json:"denied"` // to a key in its busiest window
	Granted  float64   `json:"granted"`
	Demand   float64   `json:"demand"`            // in a window: Denied.P999 and Granted
	Even     float64   `json:"demand_per_period"` // if it comes evenly
	AtOnce   float64   `json:"demand_at_once"`    // if Denied.P999 comes at once, on top of a burst
	Headroom float64   `json:"headroom"`          // a factor of Even
	Limit    float64   `json:"limit"`             // the suggested one
	Burst    float64   `json:"burst,omitempty"`   // that must change with it
	Command  string    `json:"command,omitempty"`
}

type quantiles struct {
	P50  float64 `json:"p50"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func answerOf(p *limiter.StoredPolicy, peaks inspect.Peaks) suggestAnswer {
	a := suggestAnswer{
		Policy: policyfile.OfPolicy(*p), Denials: peaks.Denials, KeysDenied: peaks.Keys, Keys: peaks.KeysWithRow,
		KeysOverridden: peaks.KeysOverridden, WithoutKey: peaks.WithoutKey,
	}
	if peaks.Keys > 0 {
		s := suggest(p.Policy, peaks)
		a.Suggestion = &s
	}
	return a
}

// suggest computes the limit.
func suggest(p limiter.Policy, peaks inspect.Peaks) suggestion {
	s := suggestion{
		First: peaks.First, Last: peaks.Last, Window: per(p), Denied: quantiles{peaks.P50, peaks.P999, peaks.Max},
		Granted: p.Limit, Headroom: replay.Headroom,
	}
	periods := 1.0 // in a window
	if p.Calendar == "" && p.Period < slot {
		s.Window, periods = slot.String(), float64(slot)/float64(p.Period)
	}
	s.Granted = p.Limit * periods
	s.Demand = s.Granted + peaks.P999
	s.Even, s.AtOnce = s.Demand/periods, cmp.Or(p.Burst, p.Limit)+peaks.P999
	s.Limit = min(rounded(s.Headroom*s.Even, p.Limit), algorithm.MaxUnits)
	s.Command = "pglimit policy set " + p.Name + " --limit " + units(s.Limit)
	if p.Burst != 0 && algorithm.Name(p.Algorithm).Family() != algorithm.Buckets { // a window's burst is its limit
		s.Burst = s.Limit
		s.Command += " --burst " + units(s.Burst)
	}
	return s
}

// rounded rounds n up: to a whole number if the present limit is one, else to two digits.
func rounded(n, limit float64) float64 {
	scale := 1.0
	for limit != math.Trunc(limit) && n*scale < 10 {
		scale *= 10
	}
	return replay.RoundUp(n*scale) / scale
}

// units returns n without an exponent, and without the rounding of a sum.
func units(n float64) string {
	n, _ = strconv.ParseFloat(strconv.FormatFloat(n, 'g', 15, 64), 64) // it was just written
	return strconv.FormatFloat(n, 'f', -1, 64)
}

// per returns the policy's period as text.
func per(p limiter.Policy) string {
	if p.Calendar != "" {
		return "calendar " + string(p.Calendar)
	}
	return p.Period.String()
}

func (a suggestAnswer) text(p *limiter.StoredPolicy) string {
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	what := "denials"
	if p.Shadow {
		what = "shadowed denials"
	}
	left := func() {
		if a.KeysOverridden > 0 {
			line("left out: %d %s with an override of the limit", a.KeysOverridden, human.Plural(int(a.KeysOverridden), "key"))
		}
		if a.WithoutKey > 0 {
			line("left out: %d %s of keys for which a denial log had no room", a.WithoutKey, what)
		}
	}
	s := a.Suggestion
	if s == nil {
		line("no %s of policy %s are on record", what, p.Name)
		left()
		line("To keep them, programs set limiter.Config.DenialLog and run its Run. They write them about once a minute.")
		if !p.Shadow {
			line("To count denials without denying: `pglimit policy set %s --shadow`", p.Name)
		}
		return text.String()
	}
	shadow := ""
	if p.Shadow {
		shadow = ", a shadow"
	}
	line("policy %s: limit %s per %s%s", p.Name, units(p.Limit), per(p.Policy), shadow)
	line("on record: %d %s from %s to %s", a.Denials, what, s.First.Format(time.RFC3339), s.Last.Format(time.RFC3339))
	line("keys: %d denied; %d have a row in pglimit_keys", a.KeysDenied, a.Keys)
	left()
	if p.ChangedAt.After(s.First) {
		line("note: the policy was changed at %s; denials from before count too", p.ChangedAt.UTC().Format(time.RFC3339))
	}
	line("denied to a key in its busiest %s: p50 %s, p99.9 %s, largest %s units", s.Window, units(s.Denied.P50), units(s.Denied.P999), units(s.Denied.Max))
	line("granted in %s: %s", s.Window, units(s.Granted))
	line("demand in %s: %s + %s = %s", s.Window, units(s.Granted), units(s.Denied.P999), units(s.Demand))
	if s.Even != s.Demand {
		line("demand per %s: %s if it comes evenly, up to %s at once", per(p.Policy), units(s.Even), units(s.AtOnce))
	}
	line("suggested limit: %s × %v, rounded up: %s", units(s.Even), s.Headroom, units(s.Limit))
	line("\n%s", s.Command)
	return text.String()
}
