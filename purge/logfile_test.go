package purge_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/purge"
)

var fields = purge.LogFields{User: "user", Session: "session", App: "app"}

// logs is a folder that may be erased in, with a caller.
func logs(t *testing.T) (*bundle, string) {
	t.Helper()
	dir := t.TempDir()
	return setup(t, withDirs(dir)), dir
}

func (b *bundle) log(path string, f purge.LogFields) purge.Target {
	t, _ := b.make(purge.New{Name: "log", Kind: purge.KindLogFile, Path: path, Fields: f})
	return t
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// lines returns the lines that say something, so that what was erased is left
// out.
func lines(text string) []string {
	var kept []string
	for _, l := range strings.Split(text, "\n") {
		if l = strings.TrimSpace(l); l != "" && l != `{"memd":"erased"}` {
			kept = append(kept, l)
		}
	}
	return kept
}

// corpus returns the user's lines and everybody else's for an erasure.
func corpus(b *bundle, r purge.Request) (theirs, others []string) {
	user := b.keys.UserRef(chat, alice)
	full := fmt.Sprintf("%x", user[:])
	quoted := strings.ReplaceAll(alice, "@", `\u0040`)
	theirs = []string{
		fmt.Sprintf(`{"msg":"step","user":"%s","n":1}`, user),
		fmt.Sprintf(`level=INFO user=%s said="something very personal"`, user),
		fmt.Sprintf(`plain text about %s, and more`, user),
		user.String(),
		fmt.Sprintf(`{"user":"%s","text":"hello"}`, alice),
		fmt.Sprintf(`{"user" : "%s","app":"%s"}`, quoted, chat),
		fmt.Sprintf(`{"deep":{"user":"%s"},"app":"%s"}`, alice, chat),
		fmt.Sprintf(`ts=1 user=%s app=%s msg="hi"`, alice, chat),
		fmt.Sprintf(`ts=2 user="%s"`, alice),
		fmt.Sprintf(`{"user":"%s","also":"user=%s"}`, bob, user), // Names both.
	}
	others = []string{
		fmt.Sprintf(`{"msg":"step","user":"%s"}`, b.keys.UserRef(chat, bob)),
		fmt.Sprintf(`{"user":"%s","text":"I met %s"}`, bob, alice), // Not the field.
		fmt.Sprintf(`{"user":"%sx"}`, alice),
		fmt.Sprintf(`{"user":"x%s"}`, alice),
		fmt.Sprintf(`{"user":"%s","app":"other-app"}`, alice), // Another app's user of that id.
		fmt.Sprintf(`superuser=%s`, alice),
		fmt.Sprintf(`{"superuser":"%s"}`, alice),
		fmt.Sprintf(`{"text":"{\"user\":\"%s\"}"}`, alice),
		fmt.Sprintf(`digest=%s`, full),
		fmt.Sprintf(`x%sx`, user),
		fmt.Sprintf(`{"msg":"erasure step done","request_id":"%s","user":"%s"}`, r.ID, user),
		`{"user":null}`, `user=`, `{"user":"`, `{"user":`, ``, `{}`,
	}
	return theirs, others
}

// mix puts both into one text, the user's between the others'.
func mix(theirs, others []string) string {
	var b strings.Builder
	for i := range max(len(theirs), len(others)) {
		if i < len(others) {
			b.WriteString(others[i] + "\n")
		}
		if i < len(theirs) {
			b.WriteString(theirs[i] + "\n")
		}
	}
	return b.String()
}

func TestLogFile_ErasesTheUsersLinesAndNoOther(t *testing.T) {
	b, dir := logs(t)
	r := request()
	theirs, others := corpus(b, r)
	path := filepath.Join(dir, "memd.log")
	text := mix(theirs, others)
	write(t, path, text)
	if err := os.Chmod(path, 0o604); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	target := b.log(path, fields)
	if a := b.must(b.caller.Count(t.Context(), target, r)); number(a.Before) != int64(len(theirs)) {
		t.Errorf("counted %d of %d", number(a.Before), len(theirs))
	}
	if read(t, path) != text {
		t.Error("counting changed the file")
	}
	a, err := b.caller.Verify(t.Context(), target, r)
	b.refused(a, err, purge.CodeRemaining, true)
	if a := b.must(b.caller.Erase(t.Context(), target, r)); number(a.Erased) != int64(len(theirs)) {
		t.Errorf("erased %+v", a)
	}
	for range 2 { // Again is nothing.
		if a := b.must(b.caller.Verify(t.Context(), target, r)); number(a.After) != 0 {
			t.Errorf("verified %+v", a)
		}
		if a := b.must(b.caller.Erase(t.Context(), target, r)); number(a.Erased) != 0 {
			t.Errorf("erased again %+v", a)
		}
	}
	got := read(t, path)
	if diff := cmp.Diff(lines(mix(nil, others)), lines(got)); diff != "" {
		t.Error(diff)
	}
	after, err := os.Stat(path)
	if err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() || len(got) != len(text) || strings.Count(got, "\n") != strings.Count(text, "\n") {
		t.Errorf("the file is another: %v, %v", after, err)
	}
	if strings.Contains(got, "very personal") {
		t.Error("the text is still there")
	}
}

func TestLogFile_ASessionIsItsUsersAlone(t *testing.T) {
	b, dir := logs(t)
	r := request()
	r.Mode, r.SessionID = purge.ModeSession, talk
	user, session := b.keys.UserRef(chat, alice), b.keys.SessionRef(b.keys.UserRef(chat, alice), talk)
	theirs := []string{
		fmt.Sprintf(`{"session":"%s"}`, session),
		fmt.Sprintf(`{"user":"%s","session":"%s"}`, alice, talk),
		fmt.Sprintf(`user=%s session=%s app=%s`, alice, talk, chat),
	}
	others := []string{
		fmt.Sprintf(`{"user":"%s"}`, user),
		fmt.Sprintf(`{"user":"%s"}`, alice),
		fmt.Sprintf(`{"session":"%s"}`, talk), // Whose?
		fmt.Sprintf(`{"user":"%s","session":"%s"}`, bob, talk),
		fmt.Sprintf(`{"user":"%s","session":"%s","app":"other-app"}`, alice, talk),
		fmt.Sprintf(`{"user":"%s","session":"another"}`, alice),
	}
	path := filepath.Join(dir, "memd.log")
	write(t, path, mix(theirs, others))
	if a := b.must(b.caller.Erase(t.Context(), b.log(path, fields), r)); number(a.Erased) != 3 {
		t.Errorf("%+v", a)
	}
	if diff := cmp.Diff(others, lines(read(t, path))); diff != "" {
		t.Error(diff)
	}
	// The user's erasure takes the lines of their sessions, whose digests it brings.
	r = request()
	r.Refs = []memd.Ref{session}
	write(t, path, mix(theirs[:1], nil))
	if a := b.must(b.caller.Erase(t.Context(), b.log(path, purge.LogFields{}), r)); number(a.Erased) != 1 {
		t.Errorf("by a digest that was brought: %+v", a)
	}
}

func TestLogFile_ATenantGoesByDigests(t *testing.T) {
	b, dir := logs(t)
	path := filepath.Join(dir, "memd.log")
	user := b.keys.UserRef(chat, alice)
	write(t, path, user.String()+"\nother\n")
	r := purge.Request{ID: request().ID, Mode: purge.ModeTenant, Tenant: "acme", Round: 1}
	a, err := b.caller.Erase(t.Context(), b.log(path, fields), r)
	b.refused(a, err, purge.CodeUnimplemented, false)
	r.Refs = []memd.Ref{user, {}}
	if a := b.must(b.caller.Erase(t.Context(), b.log(path, fields), r)); number(a.Erased) != 1 || len(lines(read(t, path))) != 1 {
		t.Errorf("%+v, %q", a, read(t, path))
	}
}

// TestLogFile_CrashSweep breaks off before every step, for every k, and starts
// again: the end is the same, and at no k is a line of somebody else touched.
func TestLogFile_CrashSweep(t *testing.T) {
	b, dir := logs(t)
	r := request()
	theirs, others := corpus(b, r)
	path := filepath.Join(dir, "memd.log")
	target := b.log(path, fields)
	crash := errors.New("crash")
	steps := map[string]int{}
	k := 0
	for ; ; k++ {
		write(t, path, mix(theirs, others))
		at := 0
		b.caller.Fault(func(step string) error {
			if at++; at > k {
				steps[step]++
				return crash
			}
			return nil
		})
		_, err := b.caller.Erase(t.Context(), target, r)
		kept := lines(read(t, path))
		for _, o := range lines(mix(nil, others)) {
			if !contains(kept, o) {
				t.Fatalf("k=%d: lost %q", k, o)
			}
		}
		b.caller.Fault(func(string) error { return nil })
		b.must(b.caller.Erase(t.Context(), target, r))
		if diff := cmp.Diff(lines(mix(nil, others)), lines(read(t, path))); diff != "" {
			t.Fatalf("k=%d: %s", k, diff)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, crash) {
			t.Fatalf("k=%d: %v", k, err)
		}
	}
	if k != 2*len(theirs)+2 || len(steps) != 4 {
		t.Errorf("%d points, %v", k, steps)
	}
	t.Logf("%d points", k)
}

// TestLogFile_TornWrites puts together what a power failure may leave: any
// prefix or suffix of what a step wrote, the rest as it was.
func TestLogFile_TornWrites(t *testing.T) {
	b, dir := logs(t)
	r := request()
	theirs, _ := corpus(b, r)
	path := filepath.Join(dir, "memd.log")
	target := b.log(path, fields)
	stop := errors.New("stop")
	for _, line := range theirs {
		states := []string{line}
		for _, step := range []string{"sync blank", "sync cover"} {
			write(t, path, line+"\n")
			b.caller.Fault(func(s string) error {
				if s == step {
					return stop
				}
				return nil
			})
			if _, err := b.caller.Erase(t.Context(), target, r); !errors.Is(err, stop) {
				t.Fatal(err)
			}
			states = append(states, strings.TrimSuffix(read(t, path), "\n"))
		}
		b.caller.Fault(func(string) error { return nil })
		for s := range 2 {
			for cut := 0; cut <= len(line); cut += 3 {
				for _, torn := range []string{states[s][:cut] + states[s+1][cut:], states[s+1][:cut] + states[s][cut:]} {
					write(t, path, torn+"\n")
					b.must(b.caller.Erase(t.Context(), target, r))
					// What is left may be part of what it was found by, cut in two;
					// nothing of what the line said.
					left := read(t, path)
					for _, said := range []string{"personal", "something", "hello", "msg", "about", "and more", "INFO"} {
						if strings.Contains(left, said) {
							t.Fatalf("step %d, cut %d of %q: left %q of %q", s, cut, line, left, torn)
						}
					}
				}
			}
		}
	}
}

// Programs write through handles that stay open, and none of what they write is
// lost while lines are erased under them.
func TestLogFile_ConcurrentAppendersLoseNothing(t *testing.T) {
	b, dir := logs(t)
	r := request()
	user := b.keys.UserRef(chat, alice)
	path := filepath.Join(dir, "memd.log")
	write(t, path, "")
	target := b.log(path, purge.LogFields{})
	const writers, each = 4, 2000
	var wg sync.WaitGroup
	errs := make(chan error, writers)
	for w := range writers {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer f.Close()
			for i := range each {
				_, err := fmt.Fprintf(f, "{\"writer\":%d,\"line\":%d}\n", w, i)
				if err == nil {
					_, err = fmt.Fprintf(f, "{\"user\":\"%s\",\"text\":\"secret of %d\"}\n", user, i)
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var erased, during int64
	for running := true; running; {
		select {
		case <-done:
			running = false
		case err := <-errs:
			t.Fatal(err)
		default:
		}
		a, err := b.caller.Erase(t.Context(), target, r)
		if err != nil && a.Code != purge.CodeLogBusy {
			t.Fatal(err)
		}
		if running {
			during += max(number(a.Erased), 0)
		}
		erased += max(number(a.Erased), 0)
	}
	b.must(b.caller.Verify(t.Context(), target, r))
	got := map[string]int{}
	for _, l := range lines(read(t, path)) {
		got[l]++
	}
	for w := range writers {
		for i := range each {
			if n := got[fmt.Sprintf(`{"writer":%d,"line":%d}`, w, i)]; n != 1 {
				t.Fatalf("line %d of writer %d is there %d times", i, w, n)
			}
		}
	}
	if len(got) != writers*each || strings.Contains(read(t, path), "secret") {
		t.Errorf("%d lines are left", len(got))
	}
	t.Logf("%d lines erased, %d while they were being written", erased, during)
}

// A file that is truncated between reading and writing (copytruncate) is left
// as it is.
func TestLogFile_WritesNothingBeyondATruncatedEnd(t *testing.T) {
	b, dir := logs(t)
	path := filepath.Join(dir, "memd.log")
	user := b.keys.UserRef(chat, alice)
	write(t, path, strings.Repeat("x", 100)+"\n"+user.String()+" a\n"+user.String()+" b\n")
	n := 0
	b.caller.Fault(func(string) error {
		if n++; n == 1 {
			write(t, path, "new\n")
		}
		return nil
	})
	a, err := b.caller.Erase(t.Context(), b.log(path, fields), request())
	b.refused(a, err, purge.CodeLogBusy, true)
	b.caller.Fault(func(string) error { return nil })
	if got := read(t, path); !strings.HasPrefix(got, "new\n") {
		t.Errorf("the new text is %q", got)
	}
}

func TestLogFile_WaitsForALineThatIsBeingWritten(t *testing.T) {
	b, dir := logs(t)
	path := filepath.Join(dir, "memd.log")
	user := b.keys.UserRef(chat, alice)
	write(t, path, fmt.Sprintf("%s whole\n%s half of what she sa", user, user))
	target := b.log(path, fields)
	a, err := b.caller.Erase(t.Context(), target, request())
	b.refused(a, err, purge.CodeLogBusy, true)
	if got := lines(read(t, path)); len(got) != 1 || !strings.HasSuffix(got[0], "she sa") {
		t.Errorf("left %q", got)
	}
	b.clock.Add(2 * time.Minute) // Nobody goes on with it.
	if a := b.must(b.caller.Erase(t.Context(), target, request())); number(a.Erased) != 1 || len(lines(read(t, path))) != 0 {
		t.Errorf("%+v, left %q", a, read(t, path))
	}
}

func TestLogFile_ReadsRotatedFilesAndLongLines(t *testing.T) {
	b, dir := logs(t)
	user := b.keys.UserRef(chat, alice)
	long := strings.Repeat("y", 1<<20)
	for _, name := range []string{"memd.log", "memd.log.1", "memd.log.10", "other.log"} {
		write(t, filepath.Join(dir, name), fmt.Sprintf("%s a\n%s %s\n%s\n", user, long, user, long))
	}
	if a := b.must(b.caller.Erase(t.Context(), b.log(filepath.Join(dir, "memd.log*"), fields), request())); number(a.Erased) != 6 {
		t.Errorf("%+v", a)
	}
	if got := read(t, filepath.Join(dir, "other.log")); strings.Count(got, user.String()) != 2 {
		t.Error("another file was touched")
	}
	// More than one batch.
	path := filepath.Join(dir, "many.log")
	write(t, path, strings.Repeat(user.String()+" x\nother\n", 5000))
	if a := b.must(b.caller.Erase(t.Context(), b.log(path, fields), request())); number(a.Erased) != 5000 || len(lines(read(t, path))) != 5000 {
		t.Errorf("%+v", a)
	}
}

func TestLogFile_RefusesWhatIsNotAPlainFileInAnAllowedFolder(t *testing.T) {
	b, dir := logs(t)
	user := b.keys.UserRef(chat, alice)
	text := user.String() + " x\n"
	outside := filepath.Join(t.TempDir(), "outside.log")
	write(t, outside, text)
	in := func(name string) string { return filepath.Join(dir, name) }
	write(t, in("real.log"), text)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink(outside, in("link-out.log")))
	must(os.Symlink("real.log", in("link-in.log")))
	must(os.Mkdir(in("folder"), 0o755))
	write(t, in("folder/a.log"), text)
	must(os.Symlink("folder", in("folder-link")))
	must(os.Symlink(filepath.Dir(outside), in("folder-out")))
	must(os.Link(outside, in("hard.log")))
	must(syscall.Mkfifo(in("pipe.log"), 0o644))
	write(t, in("gz.log"), "\x1f\x8b"+text)
	write(t, in("huge.log"), strings.Repeat("z", 9<<20)+text)
	write(t, in("allowed"), "")

	for path, want := range map[string]purge.Code{
		outside: purge.CodePath, in("link-out.log"): purge.CodePath, in("link-in.log"): purge.CodePath, in("folder"): purge.CodePath,
		in("folder-link/a.log"): purge.CodePath, in("folder-out/outside.log"): purge.CodePath, in("hard.log"): purge.CodePath,
		in("pipe.log"): purge.CodePath, in("link*"): purge.CodePath, dir + "x/a.log": purge.CodePath, in("real.log/x"): purge.CodePath,
		in("missing.log"): purge.CodeLogMissing, in("none*"): purge.CodeLogMissing, in("nowhere/a.log"): purge.CodeLogMissing,
		in("gz.log"): purge.CodeLogFormat, in("huge.log"): purge.CodeLogFormat,
	} {
		for _, op := range []func() (purge.Ack, error){
			func() (purge.Ack, error) { return b.caller.Erase(t.Context(), b.log(path, fields), request()) },
			func() (purge.Ack, error) { return b.caller.Verify(t.Context(), b.log(path, fields), request()) },
		} {
			a, err := op()
			if a.Code != want || a.Acknowledged || err == nil {
				t.Errorf("%s: %+v, %v; want %s", path, a, err, want)
			}
		}
	}
	for _, path := range []string{outside, in("real.log"), in("folder/a.log")} {
		if read(t, path) != text {
			t.Errorf("%s was touched", path)
		}
	}
	none := setup(t)
	a, err := none.caller.Erase(t.Context(), none.log(in("real.log"), fields), request())
	none.refused(a, err, purge.CodePath, false)
}

func TestRetention(t *testing.T) {
	b, dir := logs(t)
	n := purge.New{Name: "keeps", Kind: purge.KindRetention, Retention: 24 * time.Hour}
	target, _ := b.make(n)
	a := b.must(b.caller.Verify(t.Context(), target, request()))
	if a.Code != purge.CodeResidual || a.After != nil || !a.ResidualUntil.Equal(a.At.Add(24*time.Hour)) {
		t.Errorf("%+v", a)
	}
	n.Path = filepath.Join(dir, "app.log*")
	target, _ = b.make(n)
	a, err := b.caller.Erase(t.Context(), target, request())
	b.refused(a, err, purge.CodeLogMissing, true)
	write(t, filepath.Join(dir, "app.log"), "x\n")
	write(t, filepath.Join(dir, "app.log.1"), "x\n")
	b.must(b.caller.Verify(t.Context(), target, request()))
	old := b.clock.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "app.log.1"), old, old); err != nil {
		t.Fatal(err)
	}
	a, err = b.caller.Verify(t.Context(), target, request())
	b.refused(a, err, purge.CodeRetention, false)
	if err := os.Remove(filepath.Join(dir, "app.log.1")); err != nil {
		t.Fatal(err)
	}
	b.must(b.caller.Verify(t.Context(), target, request()))
	// A file that is appended to for ever is as old as its first line.
	b.clock.Add(25 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "app.log"), b.clock.Now(), b.clock.Now()); err != nil {
		t.Fatal(err)
	}
	a, err = b.caller.Verify(t.Context(), target, request())
	b.refused(a, err, purge.CodeRetention, false)
}

func contains(all []string, one string) bool {
	for _, a := range all {
		if a == one {
			return true
		}
	}
	return false
}
