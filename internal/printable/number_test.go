package printable

import "testing"

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 10: "10", 2.5: "2.5", 1e6: "1000000", 1234567.5: "1234567.5", 1 << 53: "9007199254740992", 1e-9: "0.000000001", -1e6: "-1000000", 1e-10: "1e-10", 1e21: "1e+21",
	} {
		if got := Number(v); got != want {
			t.Errorf("%g: got %s, want %s", v, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 keys, 0 policies", 1: "1 key, 1 policy", 2: "2 keys, 2 policies"} {
		if got := Count(n, "key") + ", " + Count(int64(n), "policy"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
