package memory_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd/memory"
)

// Rows that come, change and go are found by their ids, and no others.
func TestCodedRows(t *testing.T) {
	type row struct{ version, expires int64 }
	r := rand.New(rand.NewPCG(1, 2))
	rows, want := memory.NewCodedRows(), map[uuid.UUID]row{}
	ids := make([]uuid.UUID, 12_000)
	for i := range ids {
		binary.BigEndian.PutUint64(ids[i][r.IntN(2)*8:], uint64(i+1)) // as unlike a hash as ids may be
	}
	check := func() {
		t.Helper()
		if rows.Len() != len(want) {
			t.Fatalf("%d rows instead of %d", rows.Len(), len(want))
		}
		for _, id := range ids {
			version, session, expires, ok := rows.Row(id)
			w, there := want[id]
			if ok != there || ok && (version != w.version || session != w.version%3 || expires != w.expires) {
				t.Fatalf("row %v: version %d of session %d, expires %d, %v; want %+v, %v", id, version, session, expires, ok, w, there)
			}
		}
	}
	for _, removed := range []int{20, 50, 80, 20} { // of a hundred
		for range 15_000 {
			id := ids[r.IntN(len(ids))]
			if r.IntN(100) < removed {
				rows.Remove(id)
				delete(want, id)
				continue
			}
			w := row{version: want[id].version + 1}
			var expires time.Time
			if r.IntN(10) == 0 {
				expires = time.UnixMicro(int64(1 + r.IntN(1000)))
				w.expires = expires.UnixMicro()
			}
			if err := rows.Put(id, w.version, expires); err != nil {
				t.Fatal(err)
			}
			want[id] = w
		}
		check()
	}
}

// What is kept of a row besides its code is not much.
func TestCodedRows_Bytes(t *testing.T) {
	rows := memory.NewCodedRows()
	const n = 1 << 16
	for i := range n {
		if err := rows.Put(uuid.UUID{byte(i), byte(i >> 8), 1}, 1, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if besides := float64(rows.Bytes())/n - 12; besides > 40 {
		t.Errorf("a row takes %.1f bytes besides its code", besides)
	}
}
