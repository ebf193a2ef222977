package statement

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/must"
)

// fakeServer is a PostgreSQL without tables. It describes the statements with the types of
// their plans and answers each one by answer.
type fakeServer struct {
	mu     sync.Mutex
	answer func(s *sent) ([][]any, error)
	types  map[string][]uint32 // other types of a statement's columns, by its text
	refuse func(sql string) error
	log    []*sent
	closed []string // names of statements
}

// sent is one execution.
type sent struct {
	name, sql string
	params    [][]byte
	formats   []int16 // of the columns
}

// failure is an error with that SQLSTATE.
type failure string

func (f failure) Error() string { return "SQLSTATE " + string(f) }

// take returns what was sent since the last call, and the names of the statements that
// were closed.
func (s *fakeServer) take() (log []*sent, closed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, closed, s.log, s.closed = s.log, s.closed, nil, nil
	return log, closed
}

// pool connects to the server.
func (s *fakeServer) pool(t *testing.T, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config := must.OK(pgxpool.ParseConfig("host=fake user=fake sslmode=disable pool_max_conns=1"))(t)
	config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"fake"}, nil }
	config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go s.serve(server)
		return client, nil
	}
	for _, change := range changes {
		change(config)
	}
	pool := must.OK(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	return pool
}

// conn returns a connection of a pool until the test ends.
func conn(t *testing.T, pool *pgxpool.Pool) *pgxpool.Conn {
	t.Helper()
	c := must.OK(pool.Acquire(t.Context()))(t)
	t.Cleanup(c.Release)
	return c
}

// columnTypes returns the types of a statement's columns.
func (s *fakeServer) columnTypes(sql string) []uint32 {
	if types, ok := s.types[sql]; ok {
		return types
	}
	for _, p := range statements() {
		if p.text == sql {
			_, types := oids(p)
			return types
		}
	}
	return nil
}

func oids(p *statement) (params, columns []uint32) {
	for _, param := range p.params {
		params = append(params, param.oid)
	}
	for _, column := range p.columns {
		columns = append(columns, column.oid)
	}
	return params, columns
}

func (s *fakeServer) serve(c net.Conn) {
	defer c.Close()
	b := pgproto3.NewBackend(c, c)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if b.Flush() != nil {
		return
	}
	prepared := map[string]string{}
	var current *sent
	status, skip := byte('I'), false
	fail := func(err error) {
		skip = true
		code, text := "XX000", err.Error()
		if f, ok := err.(failure); ok {
			code, text, _ = strings.Cut(string(f), " ")
		}
		b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: code, Message: text})
	}
	for {
		message, err := b.Receive()
		if err != nil {
			return
		}
		switch m := message.(type) {
		case *pgproto3.Terminate:
			return
		case *pgproto3.Sync:
			skip = false
			b.Send(&pgproto3.ReadyForQuery{TxStatus: status})
			if b.Flush() != nil {
				return
			}
			continue
		case *pgproto3.Query: // begin, commit or rollback
			word, _, _ := strings.Cut(m.String, " ")
			status = map[string]byte{"begin": 'T'}[word]
			if status == 0 {
				status = 'I'
			}
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte(strings.ToUpper(word))})
			b.Send(&pgproto3.ReadyForQuery{TxStatus: status})
			if b.Flush() != nil {
				return
			}
			continue
		}
		if skip {
			continue
		}
		s.mu.Lock()
		switch m := message.(type) {
		case *pgproto3.Parse:
			if s.refuse != nil {
				if err := s.refuse(m.Query); err != nil {
					fail(err)
					break
				}
			}
			prepared[m.Name] = m.Query
			b.Send(&pgproto3.ParseComplete{})
		case *pgproto3.Close:
			delete(prepared, m.Name)
			s.closed = append(s.closed, m.Name)
			b.Send(&pgproto3.CloseComplete{})
		case *pgproto3.Bind:
			current = &sent{name: m.PreparedStatement, sql: prepared[m.PreparedStatement], formats: m.ResultFormatCodes}
			for _, p := range m.Parameters {
				current.params = append(current.params, slices.Clone(p))
			}
			b.Send(&pgproto3.BindComplete{})
		case *pgproto3.Describe:
			sql, formats := prepared[m.Name], []int16(nil)
			if m.ObjectType == 'P' {
				sql, formats = current.sql, current.formats
			} else {
				var params []uint32
				for _, p := range statements() {
					if p.text == sql {
						params, _ = oids(p)
					}
				}
				b.Send(&pgproto3.ParameterDescription{ParameterOIDs: params})
			}
			described := &pgproto3.RowDescription{}
			for i, oid := range s.columnTypes(sql) {
				described.Fields = append(described.Fields, pgproto3.FieldDescription{Name: []byte(fmt.Sprint("c", i)), DataTypeOID: oid, Format: format(formats, i)})
			}
			b.Send(described)
		case *pgproto3.Execute:
			word, _, _ := strings.Cut(current.sql, " ")
			if word == "begin" || word == "commit" || word == "rollback" {
				status = 'I'
				if word == "begin" {
					status = 'T'
				}
				b.Send(&pgproto3.CommandComplete{CommandTag: []byte(strings.ToUpper(word))})
				break
			}
			s.log = append(s.log, current)
			rows, err := s.answer(current)
			for _, row := range rows {
				var values [][]byte
				for i, v := range row {
					values = append(values, encoded(v, format(current.formats, i)))
				}
				b.Send(&pgproto3.DataRow{Values: values})
			}
			if err != nil {
				fail(err)
				break
			}
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("INSERT 0 1")})
		}
		s.mu.Unlock()
	}
}

func format(formats []int16, i int) int16 {
	switch len(formats) {
	case 0:
		return pgtype.TextFormatCode
	case 1:
		return formats[0]
	}
	return formats[i]
}

// encoded returns a column's value. A []byte is sent as it is.
func encoded(v any, format int16) []byte {
	switch v := v.(type) {
	case nil:
		return nil
	case []byte:
		return v
	case string:
		return []byte(v)
	case float64:
		if format == pgtype.BinaryFormatCode {
			return binary.BigEndian.AppendUint64(nil, math.Float64bits(v))
		}
		return strconv.AppendFloat(nil, v, 'g', -1, 64)
	case int64:
		if format == pgtype.BinaryFormatCode {
			return binary.BigEndian.AppendUint64(nil, uint64(v))
		}
		return strconv.AppendInt(nil, v, 10)
	case bool:
		if format == pgtype.BinaryFormatCode {
			return appendBoolean(nil, v)
		}
		return []byte(map[bool]string{true: "t", false: "f"}[v])
	}
	panic(fmt.Sprintf("a column of %T", v))
}

// statements returns the statements that are sent in binary.
func statements() (all []*statement) {
	for a := range tables {
		all = append(all, slices.DeleteFunc(Of(a).all(), func(s *statement) bool { return s.binary == nil })...)
	}
	return all
}
