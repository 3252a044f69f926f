package memory_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/x448/float16"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/memdtest"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/tenants"
)

// exec runs a statement that no role of memd's may run, past every trigger.
func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx(), b.DB.URL(""))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(b.ctx(), `SET session_replication_role = replica`); err != nil {
		b.t.Fatal(err)
	}
	if tag, err := conn.Exec(b.ctx(), sql, args...); err != nil || tag.RowsAffected() == 0 {
		b.t.Fatalf("%s: %v, %v", sql, tag, err)
	}
}

const sqlCopy = `
INSERT INTO memd.memories
SELECT $2::bigint, $3, $4::bigint, kind, month + $5, $6::bigint, $7::bigint, 0, source_time, created_at, updated_at, expires_at, version, edited,
  dimension, vector_format, content_digest, sealed_text, sealed_vector, sealed_metadata, changed_xid
FROM memd.memories WHERE memory_id = $1`

// A row that is copied elsewhere, by whoever can write to the tables, does not
// open there; nor does one whose columns were exchanged.
func TestService_copiedRowsDoNotOpen(t *testing.T) {
	b := setup(t)
	other := b.Tenant("globex", memdtest.Policy())
	row := raw(user("ada"), "s1", "secret")
	row.Metadata = map[string]string{"k": "v"}
	for _, tenant := range []memory.Tenant{b.tenant, other} {
		for _, r := range []memory.Row{row, raw(user("bob"), "s1", "x")} {
			if _, err := b.m.Add(t.Context(), tenant, []memory.Row{r}); err != nil {
				t.Fatal(err)
			}
		}
	}
	a := b.addOne(row)
	ada, bob := b.number(user("ada"), "s1"), b.number(user("bob"), "s1")
	// The other tenant gives out numbers of its own, from the same start.
	type place struct {
		tenant memory.Tenant
		scope  memd.Scope
		owner  memd.Number
		by     memd.Contribution
		months int
	}
	for name, p := range map[string]place{
		"another id":        {b.tenant, user("ada"), ada.Subject, ada, 0},
		"another owner":     {b.tenant, user("bob"), bob.Subject, ada, 0},
		"another's words":   {b.tenant, user("bob"), bob.Subject, bob, 0},
		"another month":     {b.tenant, user("ada"), ada.Subject, ada, 1},
		"another tenant":    {other, user("ada"), ada.Subject, ada, 0},
		"their other owner": {other, user("bob"), bob.Subject, ada, 0},
	} {
		t.Run(name, func(t *testing.T) {
			id := uuid.New()
			b.exec(sqlCopy, a.ID, p.tenant.No, id, p.owner, p.months, p.by.Subject, p.by.Session)
			_, err := b.m.Get(t.Context(), p.tenant, p.scope, id, true)
			wantErr(t, err, memd.ErrCorrupt)
			cold, _ := b.Server()
			r, err := cold.Memory.Search(t.Context(), p.tenant, memory.Query{Scope: p.scope, Vector: unit(0), TopK: 10})
			wantErr(t, err, memd.ErrCorrupt)
			if len(r.Hits) != 0 {
				t.Errorf("hits = %+v", r.Hits)
			}
			b.exec(`DELETE FROM memd.memories WHERE tenant_no = $1 AND memory_id = $2`, p.tenant.No, id)
		})
	}
	t.Run("moved to another owner", func(t *testing.T) {
		b.exec(`UPDATE memd.memories SET owner_no = $2 WHERE memory_id = $1`, a.ID, bob.Subject)
		_, err := b.m.Get(t.Context(), b.tenant, user("bob"), a.ID, false)
		wantErr(t, err, memd.ErrCorrupt)
		b.exec(`UPDATE memd.memories SET owner_no = $2 WHERE memory_id = $1`, a.ID, ada.Subject)
	})
	t.Run("columns exchanged", func(t *testing.T) {
		b.exec(`UPDATE memd.memories SET sealed_text = sealed_metadata, sealed_metadata = sealed_text WHERE memory_id = $1`, a.ID)
		_, err := b.m.Get(t.Context(), b.tenant, user("ada"), a.ID, false)
		wantErr(t, err, memd.ErrCorrupt)
		b.exec(`UPDATE memd.memories SET sealed_text = sealed_metadata, sealed_metadata = sealed_text WHERE memory_id = $1`, a.ID)
		if m := b.get(user("ada"), a.ID); m.Text != "secret" {
			t.Errorf("put back: %+v", m)
		}
	})
}

// Nothing of what a person said, or is called, is in clear in any table
// (invariant 1).
func TestService_nothingInClear(t *testing.T) {
	for _, format := range []tenants.VectorFormat{tenants.Float32, tenants.Float16} {
		t.Run(fmt.Sprint("format ", format), func(t *testing.T) {
			b := setup(t, func(p *tenants.Policy) { p.Dimension, p.VectorFormat = 16, format })
			canary := func(what string) string { return "canary-" + what + "-q7Zx" }
			vector := make([]float32, 16)
			for i := range vector {
				vector[i] = float32(i)*0.731 - 3.3
			}
			row := memory.Row{
				Scope: memd.Scope{App: "app", UserID: canary("user")}, SessionID: canary("session"), Kind: memory.KindRaw, EventID: canary("event"),
				Text: strings.Repeat(canary("text"), 20), Vector: vector, Metadata: map[string]string{canary("key"): canary("value")},
			}
			a := b.addOne(row)
			b.update(row.Scope, a.ID, memory.Change{Expected: 1, Text: new(canary("update"))})
			derived := summary(shared(), memory.Source{MemoryID: a.ID})
			derived.Text, derived.Vector = canary("summary"), vector
			b.addOne(derived)
			deleted := row
			deleted.EventID, deleted.Text = canary("event2"), canary("deleted")
			b.delete(row.Scope, b.addOne(deleted).ID, true)
			b.search(b.m, memory.Query{Scope: row.Scope, Vector: vector})

			dump := b.dump()
			needles := map[string][]byte{"a control: the app's name": []byte("app")}
			for _, what := range []string{"user", "session", "event", "text", "key", "value", "update", "summary", "event2", "deleted"} {
				needles[what] = []byte(canary(what))
			}
			for name, v := range vectorBytes(vector) {
				needles[name] = v
			}
			for name, n := range needles {
				found := bytes.Contains(dump, n) || bytes.Contains(dump, []byte(hex.EncodeToString(n)))
				if control := strings.HasPrefix(name, "a control"); found != control {
					t.Errorf("%s: found = %v in %d bytes of tables", name, found, len(dump))
				}
			}
			for _, what := range []string{"user", "session", "text", "value"} {
				if strings.Contains(b.Logs.String(), canary(what)) {
					t.Errorf("the log has the canary %s", what)
				}
			}
		})
	}
}

// dump returns every row of every table as PostgreSQL prints it.
func (b *bundle) dump() []byte {
	b.t.Helper()
	var out bytes.Buffer
	tables := query(b, pgx.RowTo[string], `SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')`)
	if len(tables) < 10 {
		b.t.Fatalf("only %d tables", len(tables))
	}
	for _, table := range tables {
		for _, row := range query(b, pgx.RowTo[string], `SELECT t::text FROM `+table+` t`) {
			out.WriteString(row + "\n")
		}
	}
	return out.Bytes()
}

// vectorBytes are six neighbouring components of a vector, as given and
// normalised, in both widths and byte orders.
func vectorBytes(v []float32) map[string][]byte {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	out := map[string][]byte{}
	for name, scale := range map[string]float64{"as given": 1, "normalised": 1 / math.Sqrt(sum)} {
		for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
			var wide, narrow []byte
			for _, x := range v[8:14] {
				scaled := float32(float64(x) * scale)
				wide = order.AppendUint32(wide, math.Float32bits(scaled))
				narrow = order.AppendUint16(narrow, float16.Fromfloat32(scaled).Bits())
			}
			out[fmt.Sprint("float32 ", name, " ", order)] = wide
			out[fmt.Sprint("float16 ", name, " ", order)] = narrow
		}
	}
	return out
}
