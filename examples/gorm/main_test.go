package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m, migrations.Up) }

func TestRun(t *testing.T) {
	t.Parallel()
	address := testdb.Empty.New(t)
	const want = `60.00: ordered, 40.00 are left
30.00: ordered, 10.00 are left
20.00: over budget, 10.00 are left
10.00: ordered, 0.00 are left
in the table: 60.00
in the table: 30.00
in the table: 10.00
100.00 spent
`
	for range 2 { // and again, on the tables and rows of the first run
		var out strings.Builder
		if err := run(t.Context(), address, &out); err != nil || out.String() != want {
			t.Fatalf("%v, printed:\n%s", err, &out)
		}
	}
}

// TestEveryKindOfGORM: also with prepared statements, and inside a transaction that is
// rolled back.
func TestEveryKindOfGORM(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*gorm.Config{"plain": {}, "prepared": {PrepareStmt: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config.Logger = logger.Discard
			db, err := gorm.Open(postgres.Open(testdb.Empty.New(t)), config)
			if err != nil {
				t.Fatal(err)
			}
			sqlDB, err := db.DB()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sqlDB.Close() })
			if err := errors.Join(migrations.UpSQL(t.Context(), sqlDB), db.AutoMigrate(&Order{})); err != nil {
				t.Fatal(err)
			}
			limits, err := limiter.NewSQL(sqlDB, &limiter.Config{Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			s := &shop{db, limits}
			if left, err := s.order(t.Context(), &Order{Account: "a", Cents: 99_00}); err != nil || left != 1_00 {
				t.Errorf("%v left, %v", left, err)
			}
			var denied *limiter.DeniedError
			if _, err := s.order(t.Context(), &Order{Account: "a", Cents: 1_01}); !errors.As(err, &denied) {
				t.Errorf("over budget: %v", err)
			}
			changed := errors.New("changed my mind")
			err = db.Transaction(func(tx *gorm.DB) error {
				if _, err := limits.InSQLTx(sqlTx(tx)).AllowN(t.Context(), budget, "a", 1_00); err != nil {
					return err
				}
				return changed
			})
			if !errors.Is(err, changed) {
				t.Error(err)
			}
			var orders []Order
			if err := db.Find(&orders).Error; err != nil || len(orders) != 1 {
				t.Errorf("%d orders, %v", len(orders), err)
			}
			if r, err := limits.Check(t.Context(), budget, "a", 0); err != nil || r.Level != 99_00 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}
