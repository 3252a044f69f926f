package tenants_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/tenants"
)

func TestPolicy_Validate(t *testing.T) {
	if err := tenants.DefaultPolicy().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	for name, c := range map[string]struct {
		change tenants.Change
		field  string
	}{
		"no dimension":           {tenants.Change{Dimension: new(0)}, "policy.dimension"},
		"large dimension":        {tenants.Change{Dimension: new(memd.MaxDimension + 1)}, "policy.dimension"},
		"too small for words":    {tenants.Change{Dimension: new(63)}, "policy.dimension"},
		"unknown embedder":       {tenants.Change{Embedder: new("magic")}, "policy.embedder"},
		"unknown format":         {tenants.Change{VectorFormat: new(tenants.FormatUnknown)}, "policy.vector_format"},
		"short destroy delay":    {tenants.Change{DestroyDelay: new(tenants.MinDestroyDelay - 1)}, "policy.destroy_delay"},
		"long destroy delay":     {tenants.Change{DestroyDelay: new(tenants.MaxDestroyDelay + 1)}, "policy.destroy_delay"},
		"broken destroy delay":   {tenants.Change{DestroyDelay: new(tenants.MinDestroyDelay + 1)}, "policy.destroy_delay"},
		"unknown index":          {tenants.Change{Index: new(tenants.IndexUnknown)}, "policy.index"},
		"negative ingestion":     {tenants.Change{IngestionDelay: new(time.Duration(-1))}, "policy.ingestion_delay"},
		"no time of lifting":     {tenants.Change{LiftFence: new(tenants.LiftUnknown)}, "policy.lift_fence"},
		"late beyond a month":    {tenants.Change{IngestionDelay: new(tenants.MaxIngestionDelay + 1)}, "policy.ingestion_delay"},
		"months below none":      {tenants.Change{SessionMonths: new(-1)}, "policy.session_retention.months"},
		"a floor out of time":    {tenants.Change{MemoryNotBefore: new(time.Unix(1<<40, 0))}, "policy.memory_retention.not_before"},
		"embedder in wrong case": {tenants.Change{Embedder: new("Lexical")}, "policy.embedder"},
	} {
		var invalid *memd.InvalidError
		if err := c.change.Apply(tenants.DefaultPolicy()).Validate(); !errors.As(err, &invalid) || invalid.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPolicy_JSON(t *testing.T) {
	want := tenants.Policy{
		Dimension: 1536, Embedder: tenants.EmbedderOpenAI, VectorFormat: tenants.Float16,
		Space: 3, Former: tenants.Space{Number: 2, Embedder: tenants.EmbedderLexical, Dimension: 64},
		DestroyDelay: 30 * 24 * time.Hour, Index: tenants.IndexSealed, IngestionDelay: time.Minute,
		LiftFence: tenants.LiftAfterSweep, Compaction: tenants.CompactionRewrite, Sessions: tenants.Retention{Months: 2},
		Memories: tenants.Retention{Months: 12, NotBefore: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)},
		Quota:    tenants.Quota{Rows: 7, Bytes: 1 << 40, Calls: 50},
	}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	// The stored form is a contract with older and newer releases.
	const stored = `{"dimension":1536,"embedder":"openai","space":3,"former_space":2,"former_embedder":"lexical","former_dimension":64,"vector_format":"float16","destroy_delay":"720h0m0s","index":"sealed","ingestion_delay":"1m0s","lift_fence":"after_sweep","compaction":"rewrite",` +
		`"session_months":2,"session_not_before":"0001-01-01T00:00:00Z","memory_months":12,"memory_not_before":"2027-01-01T00:00:00Z","max_rows":7,"max_bytes":1099511627776,"max_calls":50}`
	if string(b) != stored {
		t.Errorf("stored as %s", b)
	}
	var got tenants.Policy
	if err := json.Unmarshal(b, &got); err != nil || got != want {
		t.Errorf("read back as %+v, %v", got, err)
	}
	if err := json.Unmarshal([]byte(`{"unheard_of": 1}`), &got); err != nil || got != tenants.DefaultPolicy() {
		t.Errorf("what is missing is %+v, %v", got, err)
	}
	for _, bad := range []string{`{"index":"none"}`, `{"destroy_delay":"soon"}`, `{"dimension":"x"}`} {
		if err := json.Unmarshal([]byte(bad), &got); !errors.Is(err, memd.ErrCorrupt) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestRetention_Cutoff(t *testing.T) {
	november := time.Date(2026, 11, 30, 23, 59, 59, 0, time.UTC)
	september, err := memd.MonthOf(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		r    tenants.Retention
		now  time.Time
		want memd.Month
	}{
		"two kept":          {tenants.Retention{Months: 2}, november, september},
		"the month after":   {tenants.Retention{Months: 2}, november.Add(time.Second), september + 1},
		"all kept":          {tenants.Retention{}, november, 0},
		"before the floor":  {tenants.Retention{Months: 2, NotBefore: november.Add(time.Second)}, november, 0},
		"at the floor":      {tenants.Retention{Months: 2, NotBefore: november}, november, september},
		"more than elapsed": {tenants.Retention{Months: tenants.MaxRetention}, november, 0},
	} {
		if got := c.r.Cutoff(c.now); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestState_String(t *testing.T) {
	if s := tenants.StatePurged.String(); s != "purged" {
		t.Error(s)
	}
	if s := tenants.State(99).String(); s != "State(99)" {
		t.Error(s)
	}
}
