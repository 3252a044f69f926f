package artifacts_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
)

// sweep runs one sweep as the worker.
func (b *bundle) sweep(want int64) {
	b.t.Helper()
	n, err := artifacts.Sweep(b.ctx(), b.Worker.Pool, b.clock.Now())
	if err != nil || n != want {
		b.t.Errorf("the sweep took %d saves, want %d: %v", n, want, err)
	}
}

// slow is a stream that stops in the middle until the test says how it ends.
type slow struct {
	first   io.Reader
	reached chan struct{} // closed when all of first was read
	end     chan error    // what comes then; nil goes on with rest
	rest    io.Reader
}

func newSlow(first, rest []byte) *slow {
	return &slow{first: bytes.NewReader(first), rest: bytes.NewReader(rest), reached: make(chan struct{}), end: make(chan error)}
}

func (s *slow) Read(p []byte) (int, error) {
	if s.first != nil {
		n, err := s.first.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		s.first = nil
		close(s.reached)
		if err := <-s.end; err != nil {
			return 0, err
		}
	}
	return s.rest.Read(p)
}

// start begins a save whose stream stops after some groups were written, and
// returns when it has.
func (b *bundle) start(o artifacts.Owner, name string) (*slow, chan error) {
	b.t.Helper()
	s := newSlow(noise(3, 64*10), noise(4, 64*10))
	ended := make(chan error, 1)
	go func() {
		_, err := b.a.Save(b.ctx(), b.tenant, o, name, artifacts.File{}, s)
		ended <- err
	}()
	<-s.reached
	return s, ended
}

func (b *bundle) smallChunks() *bundle {
	b.a = b.a.WithChunks(64, 2)
	return b
}

func TestSave_ThatBreaksOffLeavesNothing(t *testing.T) {
	b := setup(t).smallChunks()
	b.save(anna, "letter", []byte("first"))
	before := b.total()
	s, ended := b.start(anna, "letter")
	if got := b.total(); got.ArtifactChunks < before.ArtifactChunks+4 {
		t.Fatalf("nothing of the save was written yet: %+v", got)
	}
	// Nobody sees it meanwhile.
	if diff := cmp.Diff([]int64{0}, b.versions(anna, "letter")); diff != "" {
		t.Error(diff)
	}
	b.holds(anna, "letter", artifacts.Latest, []byte("first"))
	if got := b.names(session(anna, "other")); len(got) != 0 {
		t.Errorf("names: %v", got)
	}
	broken := errors.New("the line broke")
	s.end <- broken
	if err := <-ended; !errors.Is(err, broken) {
		t.Errorf("Save: %v", err)
	}
	if got := b.total(); got != before {
		t.Errorf("it left %+v, before it was %+v", got, before)
	}
	// And the number was not lost.
	if v := b.save(anna, "letter", []byte("second")); v.Number != 1 {
		t.Errorf("the next version is %d", v.Number)
	}
}

func TestSave_WhoseCallerLeavesLeavesNothing(t *testing.T) {
	b := setup(t).smallChunks()
	ctx, cancel := context.WithCancel(t.Context())
	s := newSlow(noise(3, 640), nil)
	ended := make(chan error, 1)
	go func() {
		_, err := b.a.Save(ctx, b.tenant, anna, "letter", artifacts.File{}, s)
		ended <- err
	}()
	<-s.reached
	cancel()
	s.end <- nil
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Save: %v", err)
	}
	if got := b.total(); got != (artifacts.Counts{}) {
		t.Errorf("it left %+v", got)
	}
}

func TestSweep_TakesWhatAProcessThatDiedLeft(t *testing.T) {
	b := setup(t).smallChunks()
	b.save(anna, "letter", noise(1, 1000))
	whole := b.total()
	s, ended := b.start(anna, "letter")
	b.sweep(0) // It may yet end well.
	b.clock.advance(artifacts.Abandoned + time.Second)
	b.sweep(1)
	if got := b.total(); got != whole {
		t.Errorf("the sweep left %+v, want %+v", got, whole)
	}
	b.sweep(0)
	// The process was not dead after all: nothing of it comes back.
	s.end <- nil
	if err := <-ended; !errors.Is(err, memd.ErrStale) {
		t.Errorf("a save that was swept away: %v", err)
	}
	if got := b.total(); got != whole {
		t.Errorf("%+v came back, want %+v", got, whole)
	}
	b.holds(anna, "letter", 0, noise(1, 1000))
}

// A save that goes on is alive however long it takes.
func TestSweep_LeavesASaveThatIsAlive(t *testing.T) {
	b := setup(t).smallChunks()
	s, ended := b.start(anna, "letter")
	b.clock.advance(artifacts.Abandoned - time.Minute)
	s.end <- nil // writes the rest, and says so
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s, ended = b.start(anna, "letter")
	s.rest = &paced{b: b, chunk: 64, n: 20}
	s.end <- nil
	if err := <-ended; err != nil {
		t.Errorf("a save of many hours: %v", err)
	}
}

// paced gives a chunk every half hour, with a sweep in between.
type paced struct {
	b        *bundle
	chunk, n int
}

func (p *paced) Read(buf []byte) (int, error) {
	if p.n == 0 {
		return 0, io.EOF
	}
	p.n--
	p.b.clock.advance(30 * time.Minute / 2)
	if n, err := artifacts.Sweep(p.b.ctx(), p.b.Worker.Pool, p.b.clock.Now()); n != 0 || err != nil {
		p.b.t.Errorf("the sweep took %d saves: %v", n, err)
	}
	return copy(buf[:p.chunk], noise(uint64(p.n), p.chunk)), nil
}

func TestDelete_ThatBreaksOffIsFinishedByTheSweep(t *testing.T) {
	b := setup(t).smallChunks()
	b.save(anna, "letter", noise(1, 1000))
	b.superuser(`CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'stop'; END $$;
		CREATE TRIGGER stop BEFORE DELETE ON memd.artifact_chunks FOR EACH ROW EXECUTE FUNCTION stop()`)
	if _, err := b.a.Delete(t.Context(), b.tenant, anna, "letter", artifacts.All); err == nil {
		t.Error("the deletion says that it is done")
	}
	b.gone(anna, "letter", 0)
	if got := b.names(anna); len(got) != 0 {
		t.Errorf("names: %v", got)
	}
	b.superuser(`DROP TRIGGER stop ON memd.artifact_chunks`)
	b.sweep(1) // at once: nobody is still at it
	if got := b.total(); got != (artifacts.Counts{}) {
		t.Errorf("%+v is left", got)
	}
}

func TestLoad_OfWhatIsDeletedMeanwhile(t *testing.T) {
	b := setup(t).smallChunks()
	b.save(anna, "letter", noise(1, 1000))
	c, err := b.a.Load(t.Context(), b.tenant, anna, "letter", 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first group
		if _, err := c.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.a.Delete(t.Context(), b.tenant, anna, "letter", 0); err != nil {
		t.Fatal(err)
	}
	b.save(anna, "letter", noise(2, 1000)) // has the same number
	if _, err := c.Next(t.Context()); !errors.Is(err, memd.ErrNotFound) {
		t.Errorf("the next group: %v", err)
	}
}
