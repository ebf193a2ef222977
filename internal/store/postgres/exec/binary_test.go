package exec

import "testing"

// TestBinaryName: another text has another name, so that a pooler's server connection
// never runs the text of another version under this one's parameters.
func TestBinaryName(t *testing.T) {
	one, same, other := NewBinary("SELECT 1", nil, nil), NewBinary("SELECT 1", nil, nil), NewBinary("SELECT 2", nil, nil)
	if one.Name() != same.Name() || one.Name() == other.Name() || len(one.Name()) > 63 {
		t.Errorf("names %s, %s and %s", one.Name(), same.Name(), other.Name())
	}
}
