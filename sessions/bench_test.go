package sessions_test

import (
	"strings"
	"testing"
	"time"

	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/sessions"
)

// BenchmarkAppend is one event of 4 KiB, durable; BenchmarkBareInsert as many
// bytes in a row.
func BenchmarkAppend(bm *testing.B) {
	b := setup(bm)
	b.create(id("ada", "s"), nil)
	e := sessions.Event{Author: "user", Time: time.Now(), Content: `"` + strings.Repeat("x", 4096) + `"`}
	for bm.Loop() {
		e.ID = time.Now().String()
		b.append(id("ada", "s"), e)
	}
}

func BenchmarkBareInsert(bm *testing.B) {
	b := setup(bm)
	b.sudo(`CREATE TABLE public.bare (tenant_no bigint, session_no bigint, seq bigserial, at timestamptz, body bytea, PRIMARY KEY (tenant_no, session_no, seq))`)
	body := make([]byte, 4096+40)
	pool := b.DB.Pool("")
	for bm.Loop() {
		b.must(pool.With(b.ctx(), func(db pg.DB) error {
			_, err := db.Exec(b.ctx(), `INSERT INTO public.bare (tenant_no, session_no, at, body) VALUES (1, 1, $1, $2)`, time.Now(), body)
			return err
		}))
	}
}
