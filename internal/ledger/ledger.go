// Package ledger compares what callers know of their requests with what a database counts:
// acknowledged ≤ counted ≤ acknowledged + unknown.
package ledger

import "fmt"

// Account sums up the requests for one key of a policy. The zero value has none.
type Account struct {
	Acknowledged float64 // units added by requests that were answered
	Unknown      float64 // units added or given back by requests without an answer, if they arrived
	Least, Most  float64 // units that the key counts
	MayLose      float64 // units of Least that are missing if a fault has lost them
}

// Add adds a request that changed the count by least to most units:
//   - n, n: n units were acknowledged;
//   - -n, -n: n units were given back;
//   - 0, n or -n, 0: the answer to either of these was lost.
func (a *Account) Add(least, most float64) {
	if least == most {
		a.Acknowledged += max(0, least)
	}
	a.Unknown += most - least
	a.Least += least
	a.Most += most
}

// Merge adds all requests of another account.
func (a *Account) Merge(b Account) {
	a.Acknowledged += b.Acknowledged
	a.Unknown += b.Unknown
	a.Least += b.Least
	a.Most += b.Most
	a.MayLose += b.MayLose
}

// AddLossy adds a request whose effect a fault may have lost.
func (a *Account) AddLossy(least, most float64) {
	a.Add(least, most)
	a.MayLose += max(0, least)
	a.Most -= min(0, most) // what was given back may count again
}

// Judge compares the account with the units that the database counts. lost are acknowledged
// units that are missing, and twice are units above all that were sent. It returns an error
// if the fault explains neither. slack is more than what leaked since the first request.
func (a *Account) Judge(counted, slack float64) (lost, twice float64, err error) {
	if missing := a.Least - counted; missing > slack {
		lost = missing
	}
	if more := counted - a.Most; more > slack {
		twice = more
	}
	if lost > a.MayLose+slack || twice > 0 {
		err = fmt.Errorf("%.2f units are counted instead of %v to %v", counted, a.Least-a.MayLose, a.Most)
	}
	return lost, twice, err
}
