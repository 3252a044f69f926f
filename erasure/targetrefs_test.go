package erasure_test

import (
	"context"
	"slices"
	"testing"

	"forgettable.dev/memd"
	"forgettable.dev/memd/erasure"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/purge"
)

// listener is a store outside memd that only listens.
type listener struct{ refs []memd.Ref }

func (l *listener) EraseAll(_ context.Context, _ *pg.Pool, _ memd.TenantNo, _ purge.Order, r purge.Request) ([]purge.Ack, error) {
	l.refs = r.Refs
	return nil, nil
}

// Log files name people by digests, so a target is told all of them: of a user the
// sessions', of a tenant the users', nobody else's.
func TestTargets_AreToldEveryDigest(t *testing.T) {
	w := newWorld(t)
	w.add(said("alice", "s1", "x"), said("alice", "s2", "x"), said("bob", "s3", "x"))
	w.StopWorker()
	k := w.Keys(w.a, w.tenant)
	alice, bob := k.UserRef(app, "alice"), k.UserRef(app, "bob")
	j := w.accept(w.tenant, "alice", "")
	for _, tc := range []struct {
		kind erasure.Kind
		want []memd.Ref
	}{
		{erasure.KindUser, []memd.Ref{k.SessionRef(alice, "s1"), k.SessionRef(alice, "s2")}},
		{erasure.KindTenant, []memd.Ref{alice, bob}},
	} {
		var l listener
		r := w.runner()
		r.Targets, j.Kind = &l, tc.kind
		if err := erasure.CallTargets(t.Context(), r, j); err != nil {
			t.Fatal(err)
		}
		for _, ref := range tc.want {
			if !slices.Contains(l.refs, ref) {
				t.Errorf("%v: a digest is missing", tc.kind)
			}
		}
		if len(l.refs) != len(tc.want) {
			t.Errorf("%v: %d digests, want %d", tc.kind, len(l.refs), len(tc.want))
		}
	}
}
