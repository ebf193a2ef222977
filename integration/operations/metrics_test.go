package operations

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/prompglimit"
)

// scrape returns the metrics of a program with a limiter that was used, as Prometheus reads
// them.
func scrape(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	pool := testworld.NewPool(t)
	metrics := prompglimit.New(&prompglimit.Config{Pool: pool})
	l := testworld.NewLimiter(t, pool, &limiter.Config{Observe: metrics.Observe})
	metrics.Watch(l)
	p := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 2, Period: time.Hour}
	for range 4 {
		testworld.Must(t)(l.Allow(t.Context(), p, "alice"))
	}
	testworld.Reserve(t, l, p.Request("bob", 1), time.Minute)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics)
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}))
	defer server.Close()
	answer := must.OK(http.Get(server.URL))(t)
	defer answer.Body.Close()
	p2 := expfmt.NewTextParser(model.UTF8Validation)
	families := must.OK(p2.TextToMetricFamilies(answer.Body))(t)
	return families
}

// TestMetricsOfADatabase: the gauges of the database are read over a pool or a *sql.DB.
func TestMetricsOfADatabase(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		config := &prompglimit.Config{PoolEvery: 1}
		config.DB, _ = over.(*sql.DB)
		if config.DB == nil {
			config.Pool = over.(*pgxpool.Pool)
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(prompglimit.New(config))
		read := func(name string) float64 {
			for _, f := range must.OK(registry.Gather())(t) {
				if f.GetName() == name {
					return f.Metric[0].GetGauge().GetValue()
				}
			}
			return -1
		}
		testworld.Reserve(t, testworld.NewLimiter(t, pool, nil), limiter.PerHour("p", 9).Request("k", 1), time.Minute)
		testworld.Eventually(t, "up, with one open reservation", func(context.Context) (bool, error) { // an answer may be late
			return read("pglimit_database_up") == 1 && read("pglimit_open_reservations") == 1, nil
		})
		if config.DB != nil {
			_ = config.DB.Close()
		} else {
			config.Pool.Close()
		}
		if up, open := read("pglimit_database_up"), read("pglimit_open_reservations"); up != 0 || open != -1 {
			t.Errorf("closed: up %v, %v open reservations", up, open)
		}
	})
}

// values are what the labels can have.
var values = map[string][]string{
	"outcome": {string(limiter.OutcomeAllowed), string(limiter.OutcomeDenied), string(limiter.OutcomeSkipped), string(limiter.OutcomeShadowed), string(limiter.OutcomeError)},
	"source":  {string(limiter.SourceDatabase), string(limiter.SourceCache), string(limiter.SourceMemory), string(limiter.SourceDegraded), string(limiter.SourceSkipped)},
	"verb": {string(limiter.VerbAllow), string(limiter.VerbAllowUpTo), string(limiter.VerbAllowAll), string(limiter.VerbWait), string(limiter.VerbWaitAll),
		string(limiter.VerbReserve), string(limiter.VerbReserveUpTo), string(limiter.VerbCharge)},
}

// check parses an expression by Prometheus's parser, and looks for what it selects.
func check(t *testing.T, scraped map[string]*dto.MetricFamily, where, text string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %s: %v", where, text, err)
		return
	}
	found := false
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		s, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		found = true
		name := s.Name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if f := scraped[strings.TrimSuffix(name, suffix)]; f != nil && f.GetType() == dto.MetricType_HISTOGRAM {
				name = strings.TrimSuffix(name, suffix)
			}
		}
		family := scraped[name]
		if family == nil {
			t.Errorf("%s: no scrape has %s", where, s.Name)
			return nil
		}
		for _, m := range s.LabelMatchers {
			if m.Name == model.MetricNameLabel {
				continue
			}
			has := slices.ContainsFunc(family.GetMetric()[0].GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == m.Name })
			if !has {
				t.Errorf("%s: %s has no label %s", where, s.Name, m.Name)
			}
			if known := values[m.Name]; known != nil && !slices.ContainsFunc(known, m.Matches) {
				t.Errorf("%s: no %s matches %s", where, m.Name, m)
			}
			for _, v := range strings.Split(m.Value, "|") {
				if known := values[m.Name]; known != nil && !slices.Contains(known, v) {
					t.Errorf("%s: there is no %s %q", where, m.Name, v)
				}
			}
		}
		return nil
	})
	if !found {
		t.Errorf("%s: %s selects nothing", where, text)
	}
}

// dashboard is what the test reads of Grafana's JSON.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
}

// TestMetricsGrafana: docs/grafana.json asks for metrics that a scrape has, and shows all.
func TestMetricsGrafana(t *testing.T) {
	t.Parallel()
	scraped := scrape(t)
	data := must.OK(os.ReadFile("../testdata/repository/docs/grafana.json"))(t)
	var d dashboard
	must.Succeed(t, json.Unmarshal(data, &d))
	variables := strings.NewReplacer("$policy", ".*", "$__rate_interval", "5m")
	ids := map[int]bool{}
	asked := string(data)
	for _, p := range d.Panels {
		if len(p.Targets) == 0 || ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: id %d, %d queries, at %+v", p.Title, p.ID, len(p.Targets), p.GridPos)
		}
		ids[p.ID] = true
		for _, q := range p.Targets {
			check(t, scraped, p.Title, variables.Replace(q.Expr))
		}
	}
	for name := range scraped {
		if strings.HasPrefix(name, "pglimit_") && !strings.Contains(asked, name) {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// alerts is a file of Prometheus's rules, with the fields that docs/alerts.yaml uses.
type alerts struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr         string
			For                 model.Duration
			Labels, Annotations map[string]string
		}
	}
}

func TestMetricsAlerts(t *testing.T) {
	t.Parallel()
	scraped := scrape(t)
	file := must.OK(os.Open("../testdata/repository/docs/alerts.yaml"))(t)
	defer file.Close()
	var a alerts
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	if err := decoder.Decode(&a); err != nil || len(a.Groups) != 1 || a.Groups[0].Name == "" {
		t.Fatalf("%+v, %v", a, err)
	}
	for _, r := range a.Groups[0].Rules {
		check(t, scraped, r.Alert, r.Expr)
		for _, text := range r.Annotations {
			if _, err := template.New(r.Alert).Parse("{{$labels := 0}}{{$value := 0}}" + text); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestMetricsDocs: operations.md asks for nothing else.
func TestMetricsDocs(t *testing.T) {
	t.Parallel()
	data := must.OK(os.ReadFile("../testdata/repository/docs/operations.md"))(t)
	scraped, queries := scrape(t), 0
	for line := range strings.Lines(string(data)) {
		parts := strings.Split(line, "`") // every second one is code
		for i := 1; i < len(parts); i += 2 {
			if strings.HasPrefix(line, "| ") && strings.Contains(parts[i], "(pglimit_") {
				queries++
				check(t, scraped, "docs/operations.md", strings.ReplaceAll(parts[i], `\|`, "|")) // as in any cell of a table
			}
		}
	}
	if queries < 10 {
		t.Errorf("only %d queries were found", queries)
	}
}
