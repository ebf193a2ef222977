package dashboard

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// Edit is a change of a policy, or of the override of a key. It is the body of POST
// /api/preview and /api/apply.
type Edit struct {
	Policy   *policies.Stored   `json:"policy"`
	Override *policies.Override `json:"override"`
	Stored   bool               `json:"stored"`  // the override's key is as the tables have it, see Ref
	Delete   bool               `json:"delete"`  // only the names and the note matter
	Version  int64              `json:"version"` // of the preview; apply refuses another. 0: any
}

func (e *Edit) check() error {
	switch {
	case (e.Policy == nil) == (e.Override == nil):
		return api.BadField("policy", "and override are both given or both missing: send one of them")
	case e.Policy != nil && e.Delete:
		return checkPolicy(e.Policy.Name)
	case e.Policy != nil:
		return problem(e.Policy.Validate())
	case e.Override.Match != "" && !e.Delete:
		return api.BadField("match", "is %.40q: use `pglimit block` and `pglimit override set` for those of several keys", e.Override.Match)
	}
	if err := (&Ref{Key: e.Override.Key}).check(); err != nil {
		return err
	}
	if err := checkPolicy(e.Override.Policy); err != nil || e.Delete {
		return err
	}
	// In memory it is validated as in the database.
	try, err := policies.New()
	if err == nil {
		_, err = try.Apply(context.Background(), policies.Edit{SetOverrides: []policies.Override{*e.Override}})
	}
	return problem(err)
}

// problem returns an error of the limiter as the API has it.
func problem(err error) error {
	if err == nil {
		return nil
	}
	return api.ProblemOf(err, "")
}

// name returns the name of the policy.
func (e *Edit) name() string {
	if e.Policy != nil {
		return e.Policy.Name
	}
	return e.Override.Policy
}

// PolicyEdit returns e for Policies.Apply, which has keys as they are stored. key is that of
// the override.
func (e *Edit) PolicyEdit(key string) policies.Edit {
	edit := policies.Edit{IfVersion: e.Version}
	if e.Policy != nil {
		if edit.Note = e.Policy.Note; e.Delete {
			edit.Delete = []string{e.Policy.Name}
		} else {
			edit.Set = []policies.Stored{*e.Policy}
		}
		return edit
	}
	o := *e.Override
	o.Key = key
	if edit.Note = o.Note; e.Delete {
		edit.DeleteOverrides = []policies.Override{o}
	} else {
		edit.SetOverrides = []policies.Override{o}
	}
	return edit
}

// Preview has the fields that an Edit changes, and its effect: the answer of POST /api/preview.
type Preview struct {
	Version int64                   `json:"version"` // of what Fields compares with
	Fields  []policyfile.Difference `json:"fields"`  // those that differ
	Effect  Effect                  `json:"effect"`
}

// Effect says what an Edit would have denied in the last day.
type Effect struct {
	// Denied is the number of requests. nil: that cannot be known.
	Denied *int64 `json:"denied"`
	Basis  string `json:"basis"` // what the number is made of, or why there is none
	Facts
	Burst float64 `json:"burst"` // with the edit; 0 if there is none
}

// Facts are what the database has of the last day, or since the last change if that is
// later: denials of a policy or a key, and how its keys stand.
type Facts struct {
	Since      time.Time `json:"since,omitzero"`
	Denials    int64     `json:"denials"`
	Shadowed   int64     `json:"shadowed"` // of Denials, as the next three
	Blocked    int64     `json:"blocked"`
	AboveBurst int64     `json:"above_burst"`
	Overloaded int64     `json:"overloaded"`
	Keys       int64     `json:"keys"`  // with a row
	Above      int64     `json:"above"` // of Keys, those whose level is above Effect.Burst now
}

// Current has the policy and the override that an Edit changes, as they are now.
type Current struct {
	At       time.Time
	Version  int64
	Policy   *policies.Stored   // nil: none in the database
	Override *policies.Override // of the Edit's key; nil: none
	Match    policies.Match     // of an override for several keys that decides about this one
}

// since returns the time from which what is counted is by the present limits.
func (c Current) since() time.Time {
	from := c.At.Add(-24 * time.Hour)
	if c.Policy != nil && c.Policy.ChangedAt.After(from) {
		from = c.Policy.ChangedAt
	}
	if c.Override != nil && c.Override.ChangedAt.After(from) {
		from = c.Override.ChangedAt
	}
	return from
}

// preview compares e with what the source has.
func (e *Edit) preview(ctx context.Context, source Source) (p Preview, err error) {
	c, err := source.Current(ctx, *e)
	if err != nil {
		return p, err
	}
	p.Version, p.Fields = c.Version, []policyfile.Difference{}
	then := c
	if e.Policy != nil {
		if then.Policy = e.Policy; e.Delete {
			then.Policy = nil
		}
		p.Fields = policyfile.ChangePolicy(e.name(), c.Policy, then.Policy).Fields
	} else {
		if then.Override = e.Override; e.Delete {
			then.Override = nil
		}
		if c.Override != nil || then.Override != nil {
			p.Fields = policyfile.ChangeOverride(c.Override, then.Override).Fields
		}
	}
	before, after := c.standing(), then.standing()
	p.Effect = effect(before, after)
	if c.Match != "" && !after.decided() {
		p.Effect.Basis = fmt.Sprintf("an override for keys by %s decides about the key, as before", c.Match)
	}
	if after != nil {
		p.Effect.Burst = after.burst()
	}
	if before == nil {
		return p, nil
	}
	p.Effect.Facts, err = source.Facts(ctx, *e, before.Algorithm, c.since(), p.Effect.Burst)
	p.Effect.count(before, after)
	return p, err
}

// standing is the limit of a key, or of the keys without an override.
type standing struct {
	limiter.Policy
	unlimited, blocked bool
}

func (c Current) standing() *standing {
	if c.Policy == nil {
		return nil
	}
	s := &standing{Policy: c.Policy.Policy}
	if o := c.Override; o != nil {
		s.Policy, s.unlimited = o.Apply(s.Policy)
		s.blocked = o.Blocked
	}
	return s
}

// decided reports whether all requests are decided alike.
func (s *standing) decided() bool { return s != nil && (s.unlimited || s.blocked) }

// burst returns the most units that a key can have in use; 0 if that is not limited by a level.
func (s *standing) burst() float64 {
	switch {
	case s.decided():
		return 0
	case s.Burst == 0:
		return s.Limit
	}
	return s.Burst
}

// decides returns the part of s that decides what is denied.
func (s *standing) decides() limiter.Policy {
	p := s.Policy
	p.Burst, p.Shadow, p.OnError, p.LocalShare, p.Durability = s.burst(), false, 0, 0, 0
	return p
}

// effect returns why it cannot be known what a change would have denied, or no Basis.
func effect(before, after *standing) (e Effect) {
	switch {
	case before == nil:
		e.Basis = "the database has no such policy: what programs with a compiled policy let pass is not counted"
	case after == nil:
		e.Basis = "programs then use the policy that they have compiled in, or return an error"
	case after.unlimited:
	case after.blocked:
		e.Basis = "all requests would be denied, and those that passed are not counted"
	case before.decided():
		e.Basis = "the key was unlimited or blocked, so its requests were not counted"
	case algorithm.Name(before.Algorithm).Table() != algorithm.Name(after.Algorithm).Table():
		e.Basis = "with another algorithm all keys start from zero, and requests that passed are not counted"
	case before.decides() != after.decides() && !after.Shadow:
		e.Basis = "requests that passed are not counted one by one. To find out, replay an access log: pglimit replay"
	}
	return e
}

// count sets Denied where the counts have it.
func (e *Effect) count(before, after *standing) {
	var zero int64
	switch {
	case e.Basis != "":
	case after.unlimited:
		e.Denied, e.Basis = &zero, "an unlimited key is never denied"
	case after.Shadow:
		e.Denied, e.Basis = &zero, "a shadow policy denies nothing"
	case e.Denials == 0:
		e.Basis = "no denials are counted. Programs with a DenialLog count theirs, and SQL functions those of policies with count_denials"
	default:
		e.Denied, e.Basis = &e.Denials, "the limits stay as they are, so these are the denials that are counted"
		if before.Shadow {
			e.Basis += fmt.Sprintf(", with the %d that the shadow policy let pass", e.Shadowed)
		}
	}
}
