package shred_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// contribution is session s of subject u.
func contribution(t testing.TB, u, s int64) memd.Contribution {
	t.Helper()
	return memd.Contribution{Subject: number(t, 1, u), Session: number(t, 1, s)}
}

func keysOf(t testing.TB, tree *shred.Tree) *shred.Keys {
	t.Helper()
	k := shred.NewKeys(tree)
	t.Cleanup(k.Drop)
	return k
}

// opens reports whether what one Sealer sealed another opens.
func opens(t testing.TB, from, to *shred.Sealer) bool {
	t.Helper()
	sealed, err := from.Seal([]byte("tea"), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = to.Open(sealed, nil)
	if err != nil && !errors.Is(err, memd.ErrCorrupt) {
		t.Fatal(err)
	}
	return err == nil
}

func row(t testing.TB, k *shred.Keys, m memd.Month, cs ...memd.Contribution) *shred.Sealer {
	t.Helper()
	s, err := k.Row(m, cs)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestKeys_RowIsTheSameForTheSameClosure(t *testing.T) {
	a, b, c := contribution(t, 1, 1), contribution(t, 1, 2), contribution(t, 2, 1)
	one, two := keysOf(t, newTree(t)), keysOf(t, next(t, newTree(t), shred.JobPath(number(t, 1, 9))))
	given := []memd.Contribution{c, a, b, a, c}
	if !opens(t, row(t, one, 5, a, b, c), row(t, two, 5, given...)) {
		t.Error("order, repetition or epoch made another key")
	}
	if !slices.Equal(given, []memd.Contribution{c, a, b, a, c}) {
		t.Error("the caller's slice was changed")
	}
	rows := []*shred.Sealer{
		row(t, one, 5, a), row(t, one, 5, b), row(t, one, 5, c), row(t, one, 6, a),
		row(t, one, 5, a, b), row(t, one, 5, a, c), row(t, one, 5, a, b, c), row(t, one, 6, a, b, c),
	}
	for _, s := range []func() (*shred.Sealer, error){
		func() (*shred.Sealer, error) { return one.Subject(a.Subject) },
		func() (*shred.Sealer, error) { return one.Session(a.Subject, a.Session) },
		func() (*shred.Sealer, error) { return one.Session(a.Subject, b.Session) },
		func() (*shred.Sealer, error) { return one.Job(a.Subject) },
	} {
		sealer, err := s()
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, sealer)
	}
	digests := map[[16]byte]bool{}
	for i, from := range rows {
		for j, to := range rows {
			if opens(t, from, to) != (i == j) {
				t.Errorf("key %d opens what key %d sealed: %v", j, i, i != j)
			}
		}
		digests[from.Digest([]byte("tea"))] = true
	}
	if len(digests) != len(rows) {
		t.Errorf("%d keys have %d digest keys", len(rows), len(digests))
	}
}

// Derived data orphaned for want of provenance: erase any one contributor, or
// the month, and the row does not open; everybody else's does.
func TestKeys_RowNeedsEveryContributor(t *testing.T) {
	a, b, c := contribution(t, 1, 1), contribution(t, 1, 2), contribution(t, 2, 1)
	for name, punctured := range map[string]shred.Path{
		"user":    shred.SubjectPath(c.Subject),
		"session": shred.SessionPath(c.Subject, memd.ClassMemory, c.Session),
	} {
		k := keysOf(t, next(t, newTree(t), punctured))
		if _, err := k.Row(5, []memd.Contribution{a, b, c}); !errors.Is(err, memd.ErrShredded) {
			t.Errorf("%s erased: %v", name, err)
		}
		if _, err := k.Session(c.Subject, c.Session); !errors.Is(err, memd.ErrShredded) {
			t.Errorf("%s erased, session key: %v", name, err)
		}
		if _, err := k.EventID(c.Subject, c.Session, "e"); !errors.Is(err, memd.ErrShredded) {
			t.Errorf("%s erased, event id: %v", name, err)
		}
		row(t, k, 5, a, b)
	}
	k := keysOf(t, next(t, newTree(t), shred.MonthPath(memd.ClassMemory, 5)))
	if _, err := k.Row(5, []memd.Contribution{a}); !errors.Is(err, memd.ErrShredded) {
		t.Errorf("month expired: %v", err)
	}
	row(t, k, 6, a)
	if _, err := k.Subject(a.Subject); err != nil {
		t.Errorf("directory went with the month: %v", err)
	}
	// Deleting a session's content leaves what memory took from it.
	k = keysOf(t, next(t, newTree(t), shred.SessionPath(c.Subject, memd.ClassContent, c.Session)))
	row(t, k, 5, a, b, c)
}

func TestKeys_RefusesNonsense(t *testing.T) {
	k, good := keysOf(t, newTree(t)), contribution(t, 1, 1)
	many := make([]memd.Contribution, memd.MaxContributions+1)
	for i := range many {
		many[i] = contribution(t, 1, int64(i)+1)
	}
	if _, err := k.Row(5, many); !errors.Is(err, memd.ErrTooManyContributions) {
		t.Errorf("too many: %v", err)
	}
	row(t, k, 5, many[1:]...)
	for name, call := range map[string]func() (*shred.Sealer, error){
		"no month":        func() (*shred.Sealer, error) { return k.Row(0, []memd.Contribution{good}) },
		"no contribution": func() (*shred.Sealer, error) { return k.Row(5, nil) },
		"no session":      func() (*shred.Sealer, error) { return k.Row(5, []memd.Contribution{{Subject: good.Subject}}) },
		"session zero":    func() (*shred.Sealer, error) { return k.Session(good.Subject, 0) },
		"subject zero":    func() (*shred.Sealer, error) { return k.Subject(0) },
		"job zero":        func() (*shred.Sealer, error) { return k.Job(0) },
	} {
		if _, err := call(); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeys_Refs(t *testing.T) {
	k := keysOf(t, newTree(t))
	user := k.UserRef("app", "user")
	if user != keysOf(t, next(t, newTree(t))).UserRef("app", "user") {
		t.Error("a user's ref changes with the epoch")
	}
	refs := map[memd.Ref]bool{
		user: true, k.UserRef("ap", "puser"): true, k.UserRef("appuser", ""): true, k.UserRef("", "appuser"): true,
		k.SharedRef("app"): true, k.UserRef("app", ""): true,
		k.SessionRef(user, "s"): true, k.SessionRef(user, "t"): true, k.SessionRef(k.SharedRef("app"), "s"): true,
	}
	if len(refs) != 9 {
		t.Errorf("9 things have %d refs", len(refs))
	}
}

func TestKeys_EventID(t *testing.T) {
	k, c := keysOf(t, newTree(t)), contribution(t, 1, 1)
	ids := map[uuid.UUID]bool{}
	for _, at := range []memd.Contribution{c, contribution(t, 1, 2), contribution(t, 2, 1)} {
		for _, event := range []string{"", "a", "b"} {
			id, err := k.EventID(at.Subject, at.Session, event)
			if err != nil || id.Version() != 8 || id.Variant() != uuid.RFC4122 {
				t.Fatalf("%v: %v", id, err)
			}
			ids[id] = true
		}
	}
	again, err := keysOf(t, next(t, newTree(t))).EventID(c.Subject, c.Session, "a")
	if err != nil || len(ids) != 9 || !ids[again] {
		t.Errorf("9 events have %d ids, or they change with the epoch: %v", len(ids), err)
	}
}

// A cached key works after destruction: not after Drop.
func TestKeys_DropMakesEverythingStale(t *testing.T) {
	k, c := shred.NewKeys(newTree(t)), contribution(t, 1, 1)
	s := row(t, k, 5, c)
	sealed, err := s.Seal([]byte("tea"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ref := k.UserRef("app", "user")
	k.Drop()
	k.Drop()
	_, rowErr := k.Row(5, []memd.Contribution{c})
	_, subjectErr := k.Subject(c.Subject)
	_, sessionErr := k.Session(c.Subject, c.Session)
	_, jobErr := k.Job(c.Subject)
	_, eventErr := k.EventID(c.Subject, c.Session, "a")
	_, rotationErr := k.Rotation(c.Subject)
	_, sealErr := s.Seal([]byte("tea"), nil)
	_, openErr := s.Open(sealed, nil)
	for i, err := range []error{rowErr, subjectErr, sessionErr, jobErr, eventErr, rotationErr, sealErr, openErr} {
		if !errors.Is(err, memd.ErrStale) {
			t.Errorf("call %d after drop: %v", i, err)
		}
	}
	if k.UserRef("app", "user") != ref || k.Epoch() != 1 || k.Tenant() != 7 {
		t.Error("a ref changed under a call in flight")
	}
}

func TestKeys_ConcurrentUseAndDrop(t *testing.T) {
	k := shred.NewKeys(newTree(t))
	var users sync.WaitGroup
	started := make(chan struct{}, 8)
	for g := range int64(8) {
		users.Go(func() {
			for i := int64(0); ; i++ {
				at := contribution(t, 1+(i+g)%50, 1+i%7)
				s, err := k.Row(memd.Month(1+i%3), []memd.Contribution{at, contribution(t, 60, 1)})
				if err == nil {
					var sealed []byte
					if sealed, err = s.Seal([]byte("tea"), nil); err == nil {
						_, err = s.Open(sealed, nil)
					}
				}
				if i == 200 {
					started <- struct{}{}
				}
				if errors.Is(err, memd.ErrStale) && i > 200 {
					return
				}
				if err != nil {
					t.Errorf("round %d: %v", i, err)
					started <- struct{}{}
					return
				}
			}
		})
	}
	for range 8 {
		<-started
	}
	k.Drop()
	users.Wait()
}

func BenchmarkRowCached(b *testing.B) {
	k, cs := keysOf(b, newTree(b)), []memd.Contribution{contribution(b, 100_000, 3)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := k.Row(683, cs); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRowUncached(b *testing.B) {
	k, cs := keysOf(b, newTree(b)), []memd.Contribution{contribution(b, 100_000, 3)}
	b.ReportAllocs()
	for i := int64(1); b.Loop(); i++ {
		cs[0].Session = memd.OwnScope + memd.Number(i)
		if _, err := k.Row(683, cs); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen1536(b *testing.B) {
	s := rowSealer(b)
	sealed, err := s.Seal(randomBytes(newRand(b), 1536), nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Open(sealed, nil); err != nil {
			b.Fatal(err)
		}
	}
}
