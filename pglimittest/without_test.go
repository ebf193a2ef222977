package pglimittest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestWithout: the TestMain in docs/library.md, for applications without this package, works
// and leaves nothing in the database, and its tests need none of this module's dependencies.
func TestWithout(t *testing.T) {
	t.Parallel()
	const file = "testdata/without/main_test.go"
	program, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../docs/library.md")
	if err != nil {
		t.Fatal(err)
	}
	_, main, _ := strings.Cut(string(program), "\nvar pool")
	main, _, _ = strings.Cut(main, "\n// TestOrder")
	if main == "" || !strings.Contains(string(docs), "```go\nvar pool"+main+"```\n") {
		t.Errorf("docs/library.md does not show the TestMain of %s:\nvar pool%s", file, main)
	}

	address, drop, err := shared.CreateDatabase(t.Context(), "without")
	if err != nil {
		t.Fatal(err)
	}
	defer drop(context.Background())
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "./testdata/without")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+address)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left := query(t, address, `SELECT count(*)::text FROM pg_namespace WHERE nspname LIKE 'test%'`); left != "0" {
		t.Errorf("%s schemas are left", left)
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "./testdata/without").Output()
	if err != nil || strings.Contains(string(out), "testcontainers") || !strings.Contains(string(out), "pglimit/migrations") {
		t.Errorf("it imports %s, %v", out, err)
	}
}
