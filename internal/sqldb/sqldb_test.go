package sqldb

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
)

// TestEveryStatementsTypes: all parameters and results of the statements of db/ can be
// converted.
func TestEveryStatementsTypes(t *testing.T) {
	t.Parallel()
	queries := reflect.TypeFor[*db.Queries]()
	ctx, tx := reflect.TypeFor[context.Context](), reflect.TypeFor[db.DBTX]()
	fields := func(of reflect.Type, check func(reflect.Value) error, method string) {
		v := reflect.New(of)
		if of.Kind() != reflect.Struct {
			if err := check(v); err != nil {
				t.Errorf("%s: %v", method, err)
			}
			return
		}
		for i := range of.NumField() {
			if err := check(v.Elem().Field(i).Addr()); err != nil {
				t.Errorf("%s, %s: %v", method, of.Field(i).Name, err)
			}
		}
	}
	sendable := func(v reflect.Value) error { _, err := encodeOne(v.Elem().Interface()); return err }
	readable := func(v reflect.Value) error {
		if err := assign(v.Interface(), nil); err != nil && strings.HasPrefix(err.Error(), "no conversion") {
			return err
		}
		return nil
	}
	if queries.NumMethod() < 50 {
		t.Fatalf("%d statements", queries.NumMethod())
	}
	for i := range queries.NumMethod() {
		m := queries.Method(i)
		for j := 1; j < m.Type.NumIn(); j++ {
			if in := m.Type.In(j); in != ctx && in != tx {
				fields(in, sendable, m.Name)
			}
		}
		if m.Type.NumOut() == 2 {
			out := m.Type.Out(0)
			if out.Kind() == reflect.Slice { // of rows
				out = out.Elem()
			}
			fields(out, readable, m.Name)
		}
	}
}

func TestEncode(t *testing.T) {
	t.Parallel()
	seven := int64(7)
	for _, c := range []struct{ in, want any }{
		{"it's", "it's"},
		{true, true},
		{1e-9, 1e-9},
		{int64(math.MaxInt64), int64(math.MaxInt64)},
		{&seven, int64(7)},
		{(*int64)(nil), nil},
		{nil, nil},
		{[]string(nil), nil},
		{[]string{}, `{}`},
		{[]string{"", "NULL", `a"b`, `c\d`, "{e,f}", " g ", "ü\n漢", "'"}, `{"","NULL","a\"b","c\\d","{e,f}"," g ","ü` + "\n" + `漢","'"}`},
		{[]bool{true, false}, `{true,false}`},
		{uint32(1<<32 - 1), int64(1<<32 - 1)},
		{[]uint32{0, 1<<32 - 1}, `{0,4294967295}`},
		{[]int64{math.MinInt64, 0, math.MaxInt64}, `{-9223372036854775808,0,9223372036854775807}`},
		{[]float64{0, 1e-9, 0.1, 1 << 53, math.MaxFloat64, math.SmallestNonzeroFloat64}, `{0,1e-09,0.1,9.007199254740992e+15,1.7976931348623157e+308,5e-324}`},
	} {
		if got, err := encodeOne(c.in); got != c.want || err != nil {
			t.Errorf("%#v: %#v, %v, want %#v", c.in, got, err, c.want)
		}
	}
	if got, err := encode([]any{pgx.QueryExecModeExec, []bool{true}}); err != nil || len(got) != 2 || got[0] != pgx.QueryExecModeExec || got[1] != "{true}" {
		t.Errorf("after a mode: %v, %v", got, err)
	}
	if _, err := encode([]any{pgx.QueryExecModeExec, "a", 7}); err == nil || !strings.Contains(err.Error(), "parameter $2: a int") {
		t.Errorf("an int after a mode: %v", err)
	}
	if _, err := encode([]any{"a", 7}); err == nil || !strings.Contains(err.Error(), "parameter $2: a int") {
		t.Errorf("an int: %v", err)
	}
}

// TestFloatsReadBackTheSame takes floats of every size.
func TestFloatsReadBackTheSame(t *testing.T) {
	t.Parallel()
	for bits := uint64(1); bits < math.Float64bits(math.Inf(1)); bits += bits/3 + 12345 {
		want := math.Float64frombits(bits)
		text, _ := encodeOne([]float64{want})
		got, err := strconv.ParseFloat(strings.Trim(text.(string), "{}"), 64)
		if got != want || err != nil {
			t.Fatalf("%v: %v, %v", want, got, err)
		}
	}
}

func TestAssign(t *testing.T) {
	t.Parallel()
	var f float64
	var n int64
	var b bool
	var s string
	var p *int64
	for _, c := range []struct {
		dest, from, want any
	}{
		{&f, 0.1, 0.1}, {&f, []byte("1e-09"), 1e-9}, {&f, "9007199254740992", 9007199254740992.0}, {&f, int64(3), 3.0},
		{&n, int64(1 << 62), int64(1 << 62)}, {&n, []byte("-7"), int64(-7)},
		{&b, true, true}, {&b, []byte("f"), false},
		{new(int), []byte("5"), 5}, {new(int32), int64(5), int32(5)}, {new(uint32), []byte("4294967295"), uint32(1<<32 - 1)},
		{new(time.Time), time.Unix(1, 0), time.Unix(1, 0)}, {new([]string), []byte(`{"a b",c}`), []string{"a b", "c"}}, {new([]string), "{}", []string{}},
		{&s, "x", "x"}, {&s, []byte("y"), "y"},
	} {
		if err := assign(c.dest, c.from); err != nil || !reflect.DeepEqual(reflect.ValueOf(c.dest).Elem().Interface(), c.want) {
			t.Errorf("%#v: %v, %v", c.from, reflect.ValueOf(c.dest).Elem(), err)
		}
	}
	if err := assign(&p, int64(5)); err != nil || *p != 5 {
		t.Errorf("nullable: %v", err)
	}
	if err := assign(&p, nil); err != nil || p != nil {
		t.Errorf("NULL: %v, %v", p, err)
	}
	if err := assign(&n, nil); err == nil || !strings.Contains(err.Error(), "NULL for a int64") {
		t.Errorf("NULL for a number: %v", err)
	}
	if err := assign(&n, "x"); err == nil {
		t.Error("a word for a number")
	}
	if err := assign(new(int16), int64(1)); err == nil {
		t.Error("an int16")
	}
}

// TestApart: a caller gets its answer when its context ends, even if f continues, and the
// context's error, whatever f returned.
func TestApart(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	go func() { <-begun; cancel() }()
	_, err := leavable(ctx, func() (int, error) { close(begun); <-release; return 1, nil })
	close(release)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("abandoned: %v", err)
	}
	if _, err := leavable(unnoticed{t.Context()}, func() (int, error) { return 1, errors.New("the driver's own") }); !errors.Is(err, context.Canceled) {
		t.Errorf("afterwards: %v", err)
	}
	if v, err := leavable(context.Background(), func() (int, error) { return 1, nil }); v != 1 || err != nil {
		t.Errorf("without an end: %v, %v", v, err)
	}
}

// unnoticed is a context that has ended, but whose end is noticed after f's return.
type unnoticed struct{ context.Context }

func (unnoticed) Err() error { return context.Canceled }
