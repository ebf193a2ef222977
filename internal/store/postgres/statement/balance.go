package statement

import (
	"encoding/json"
	"fmt"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

func accountView(v *views, left int, f *fields, _ *store.Query) algorithm.View {
	a := next(&v.accounts, left)
	*a = algorithm.AccountView{Units: f.level, From: f.spent}
	return a
}

// accountState is an account that only its level is known of.
func accountState(f *fields) algorithm.State { return &algorithm.Account{Debt: f.level} }

// The values of granted if a Grant is refused.
const lotIsOver, tooManyLots = -2, 0

// refused returns why a Grant has changed nothing.
func (f *fields) refused() algorithm.Refusal {
	switch f.granted {
	case lotIsOver:
		return algorithm.LotIsOver
	case tooManyLots:
		return algorithm.TooManyLots
	}
	return algorithm.Accepted
}

// account returns the account of a Usage.
func (f *fields) account() (*algorithm.Account, error) {
	a := &algorithm.Account{Debt: f.debt, Granted: f.totalGranted, Spent: f.totalSpent, Expired: f.totalExpired}
	var lots []struct {
		Number   int64   `json:"number,string"`
		Left     float64 `json:"left"`
		Ends     int64   `json:"end,string"`
		Priority int64   `json:"priority"`
		Source   string  `json:"source"`
	}
	if err := json.Unmarshal(f.lots, &lots); err != nil {
		return nil, fmt.Errorf("pglimit: read the lots of a balance: %w", err)
	}
	for _, l := range lots {
		a.Lots = append(a.Lots, algorithm.Lot(l))
	}
	return a, nil
}
