package lease

import (
	"testing"
	"time"
)

// bench is a Table with clocks and timers that a test moves.
type bench struct {
	*testing.T
	*Table[string, int]
	steady, wall int64
	atRead       func() // when the clock is read; nil: nothing
	timers       []func()
	returned     []int64
}

func newBench(t *testing.T, keys int) *bench {
	b := &bench{T: t}
	var err error
	b.Table, err = New(Options[string, int]{
		Keys: keys, Least: 4, Share: 16, Clone: func(k string) string { return k },
		Clock: func() (int64, int64) {
			if b.atRead != nil {
				b.atRead()
			}
			return b.steady, b.wall
		},
		After:  func(_ time.Duration, f func()) { b.timers = append(b.timers, f) },
		Return: func(_ *Block[string, int], units, _ int64) { b.returned = append(b.returned, units) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const life = 1000

// add takes a block of units for a key.
func (b *bench) add(k string, units int64) *Block[string, int] {
	b.Add(b.Begin(k), k, 0, units, 1e6, life)
	return b.Lookup(k)
}

// pass moves both clocks, and looks at all blocks.
func (b *bench) pass(d int64) {
	b.steady, b.wall = b.steady+d, b.wall+d
	timers := b.timers
	b.timers = nil
	for _, f := range timers {
		f()
	}
}

// takes fails the test unless the key's blocks grant want units one by one, and no more.
func (b *bench) takes(k string, want int) {
	b.Helper()
	got := 0
	if newest := b.Lookup(k); newest != nil {
		for from, _ := newest.Take(1); from != nil; from, _ = newest.Take(1) {
			got++
		}
	}
	if got != want {
		b.Errorf("%d units of %s were granted, want %d", got, k, want)
	}
}

func (b *bench) wantReturned(want ...int64) {
	b.Helper()
	if len(b.returned) != len(want) {
		b.Fatalf("returned %v, want %v", b.returned, want)
	}
	for i := range want {
		if b.returned[i] != want[i] {
			b.Fatalf("returned %v, want %v", b.returned, want)
		}
	}
}

// TestBlockIsGrantedOnce: callers get each unit of a block once, until its life ends by either
// clock.
func TestBlockIsGrantedOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		steady, wall int64
		want         int
	}{
		{"within", life - 1, life - 1, 5},
		{"over", life, life, 0},
		{"over by the wall's clock: the machine was suspended", 1, life, 0},
		{"over by the steady clock: the wall's was set back", life, -life, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 10)
			b.add("a", 5)
			b.steady, b.wall = c.steady, c.wall
			b.takes("a", c.want)
		})
	}
}

// TestClockIsReadAfterTheUnitsWereTaken: else a process that is stopped between the two grants
// units of a lease that has ended.
func TestClockIsReadAfterTheUnitsWereTaken(t *testing.T) {
	t.Parallel()
	b := newBench(t, 10)
	block := b.add("a", 5)
	read := false
	b.atRead = func() {
		if read = true; block.Left() != 3 {
			t.Errorf("%d of 5 units are left when the clock is read, want 3", block.Left())
		}
	}
	if from, taken := block.Take(2); from != block || taken.Left != 3 || !read {
		t.Errorf("took from %v: %+v; the clock was read: %v", from, taken, read)
	}
	b.atRead = nil
	b.steady = life
	if from, _ := block.Take(2); from != nil || block.Left() != 3 {
		t.Errorf("took from %v after its life; %d units are left, want 3", from, block.Left())
	}
	b.pass(0)
	b.wantReturned(3)
}

// TestRestIsReturnedOnce: when the life is over, when the key is idle, and at the end.
func TestRestIsReturnedOnce(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *bench){
		"life": func(b *bench) { b.pass(life) },
		"idle": func(b *bench) { b.pass(life / 3); b.pass(life / 3) },
		"end":  func(b *bench) { b.End() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 10)
			block := b.add("a", 50)
			for range 20 {
				block.Take(1)
			}
			end(b)
			b.pass(life)
			b.End()
			b.wantReturned(30)
			if b.takes("a", 0); block.Put(1) || b.Len() != 0 {
				t.Errorf("%d blocks are left, or one takes units back", b.Len())
			}
		})
	}
}

// TestDropReturnsNothing: a dropped key has no units, and an attempt that began before the drop
// adds none.
func TestDropReturnsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, 10)
	b.add("a", 50)
	old, at := b.add("a", 60), b.Begin("a")
	b.Drop("a")
	b.Add(at, "a", 0, 70, 1e6, life)
	b.takes("a", 0)
	if from, _ := old.Take(1); from != nil {
		t.Error("a block that was dropped grants")
	}
	b.pass(life)
	b.wantReturned()
	if b.Len() != 0 {
		t.Errorf("%d blocks are left", b.Len())
	}
	b.add("a", 5)
	b.takes("a", 5)
}

// TestUnitsGoBackOnce: a block never grants more than the row counted.
func TestUnitsGoBackOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, 10)
	block := b.add("a", 5)
	block.Take(2)
	if !block.Put(2) || block.Put(2) || block.Left() != 5 {
		t.Errorf("%d units are left, want 5", block.Left())
	}
	b.takes("a", 5)
}

// TestOldBlockIsUsedUpFirst: the block that ends first is used up first.
func TestOldBlockIsUsedUpFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t, 10)
	old := b.add("a", 5)
	b.pass(life / 2)
	newest := b.add("a", 7)
	if from, taken := newest.Take(4); from != old || taken.Left != 8 || taken.Age != 0 {
		t.Errorf("took from %p: %+v; want from %p", from, taken, old)
	}
	if from, _ := newest.Take(2); from != newest {
		t.Error("what the old block lacks is not taken from the new one")
	}
	b.takes("a", 6)
}

// TestSizes: a block holds what is used in half a life, grows by its use, and is a small part of
// what remains. Cold keys have none.
func TestSizes(t *testing.T) {
	t.Parallel()
	b := newBench(t, 10)
	for range 7 {
		if n := b.Granted("a", 1, 1e6, life); n != 0 {
			t.Fatalf("a block of %d units for a cold key", n)
		}
	}
	if n := b.Granted("b", 100, 64, life); n != 4 {
		t.Errorf("a block of %d of 64 units that remain, want 4", n)
	}
	b.Refused("b")
	if n := b.Granted("b", 1, 63, life); n != 0 {
		t.Errorf("a block of %d of 63 units that remain, want none", n)
	}
	if n := b.Granted("a", 1, 1e6, life); n != 4 {
		t.Errorf("a block of %d units after 8 requests in a life, want 4", n)
	}
	if n := b.Granted("a", 50, 1e6, life); n != 0 {
		t.Errorf("a second block of %d units is taken at the same time", n)
	}
	block := b.add("a", 100)
	b.pass(life / 10)
	if _, taken := block.Take(49); taken.Renew != 0 {
		t.Errorf("a block is renewed with most of it left: %+v", taken)
	}
	if _, taken := block.Take(1); taken.Renew != 250 {
		t.Errorf("renewed with %d units, want 250: 50 were used in a tenth of a life", taken.Renew)
	}
	if _, taken := block.Take(1); taken.Renew != 0 {
		t.Errorf("renewed twice: %+v", taken)
	}
	b.pass(2 * life)
	if n := b.Granted("a", 1, 1e6, life); n != 0 {
		t.Errorf("a block of %d units for a key that was hot two lives ago", n)
	}
}

// TestSizesAreThoseOfTheUse: at a steady use each block holds what half a life uses, although the
// one before is used up first.
func TestSizesAreThoseOfTheUse(t *testing.T) {
	t.Parallel()
	b, size := newBench(t, 1000), int64(4)
	newest := b.add("a", size)
	for range 20 * life {
		b.steady, b.wall = b.steady+1, b.wall+1
		from, taken := newest.Take(1)
		if from == nil {
			t.Fatal("a block is used up before the next one comes")
		}
		if taken.Renew > 0 {
			size = taken.Renew
			newest = b.add("a", size)
		}
	}
	if size != life/2 {
		t.Errorf("blocks hold %d units, want %d", size, life/2)
	}
}

// TestKeysBoundBlocks: one more is returned at once.
func TestKeysBoundBlocks(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.add("a", 5)
	b.add("b", 6)
	b.wantReturned(6)
	b.takes("a", 5)
	b.takes("b", 0)
}
