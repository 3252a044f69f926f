package artifacts_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
)

func TestService_RoundTripOfEverySize(t *testing.T) {
	b := setup(t)
	b.a = b.a.WithChunks(64, 3)
	for i, n := range []int{0, 1, 63, 64, 65, 127, 128, 191, 192, 193, 384, 1000} {
		want := noise(uint64(n), n)
		v := b.save(anna, "blob", want)
		if v.Number != int64(i) || v.Size != int64(n) {
			t.Errorf("%d bytes became version %d of %d bytes", n, v.Number, v.Size)
		}
		b.holds(anna, "blob", v.Number, want)
		b.holds(anna, "blob", artifacts.Latest, want)
	}
	// What was saved in chunks of one size is read by a service that uses another.
	b.a = b.a.WithChunks(1<<10, 4)
	b.holds(anna, "blob", 11, noise(1000, 1000))
}

func TestService_Ranges(t *testing.T) {
	b := setup(t)
	b.a = b.a.WithChunks(64, 3)
	whole := noise(1, 640+17)
	b.save(anna, "blob", whole)
	size := int64(len(whole))
	for offset := int64(0); offset <= size; offset += 7 {
		for _, length := range []int64{0, 1, 2, 63, 64, 65, 191, 192, 200, size, size + 100} {
			want := whole[offset:]
			if length > 0 {
				want = want[:min(length, int64(len(want)))]
			}
			got, err := b.load(anna, "blob", 0, offset, length)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("from %d, %d bytes: got %d, want %d (%v)", offset, length, len(got), len(want), err)
			}
		}
	}
	for _, c := range [][2]int64{{size, 0}, {size, 5}} {
		if got, err := b.load(anna, "blob", 0, c[0], c[1]); err != nil || len(got) != 0 {
			t.Errorf("the range at the end: %d bytes, %v", len(got), err)
		}
	}
	for _, c := range [][2]int64{{size + 1, 0}, {-1, 0}, {0, -1}} {
		if _, err := b.load(anna, "blob", 0, c[0], c[1]); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("range %v: %v", c, err)
		}
	}
	c, err := b.a.Load(t.Context(), b.tenant, anna, "blob", 0, 600, 1000)
	if err != nil || c.Offset != 600 || c.Length != size-600 || c.Size != size {
		t.Errorf("the range says %d+%d of %d, %v", c.Offset, c.Length, c.Size, err)
	}
}

func TestService_Metadata(t *testing.T) {
	b := setup(t)
	spoken := b.clock.Now().Add(-time.Hour).Truncate(time.Microsecond)
	file := artifacts.File{MimeType: "image/png", Metadata: map[string]string{"taken": "in the garden", "": ""}, SourceTime: spoken}
	if _, err := b.a.Save(t.Context(), b.tenant, anna, "photo", file, bytes.NewReader(nil)); !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("an empty key: %v", err)
	}
	delete(file.Metadata, "")
	saved, err := b.a.Save(t.Context(), b.tenant, anna, "photo", file, bytes.NewReader([]byte("png")))
	if err != nil {
		t.Fatal(err)
	}
	b.save(anna, "photo", []byte("second"))
	got, err := b.a.GetVersion(t.Context(), b.tenant, anna, "photo", 0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(saved, got); diff != "" {
		t.Errorf("saved and read (-saved +read):\n%s", diff)
	}
	if got.Size != 3 || got.MimeType != "image/png" || got.Metadata["taken"] != "in the garden" || !got.SourceTime.Equal(spoken) || got.Name != "photo" {
		t.Errorf("got %+v", got)
	}
	latest, err := b.a.GetVersion(t.Context(), b.tenant, anna, "photo", artifacts.Latest)
	if err != nil || latest.Number != 1 || latest.MimeType != "" || !latest.SourceTime.IsZero() {
		t.Errorf("latest: %+v, %v", latest, err)
	}
}

func TestService_VersionsAndDeletion(t *testing.T) {
	b := setup(t)
	for i := range 4 {
		b.save(anna, "notes", fmt.Appendf(nil, "version %d", i))
	}
	b.save(anna, "other", []byte("stays"))
	remove := func(name string, version, want int64) {
		t.Helper()
		if n, err := b.a.Delete(t.Context(), b.tenant, anna, name, version); err != nil || n != want {
			t.Errorf("deleting %s %d: %d versions, %v", name, version, n, err)
		}
	}
	remove("notes", 1, 1)
	remove("notes", 1, 0)
	remove("notes", 99, 0)
	remove("never", artifacts.All, 0)
	remove("never", 0, 0)
	if diff := cmp.Diff([]int64{0, 2, 3}, b.versions(anna, "notes")); diff != "" {
		t.Error(diff)
	}
	b.gone(anna, "notes", 1)
	b.holds(anna, "notes", 2, []byte("version 2"))
	// The number of a deleted version is not given out again.
	remove("notes", 3, 1)
	if v := b.save(anna, "notes", []byte("version 4")); v.Number != 4 {
		t.Errorf("the next version is %d", v.Number)
	}
	remove("notes", artifacts.All, 3)
	b.gone(anna, "notes", artifacts.Latest)
	if diff := cmp.Diff([]string{"other"}, b.names(anna)); diff != "" {
		t.Error(diff)
	}
	if got := b.total(); got != (artifacts.Counts{Artifacts: 1, ArtifactVersions: 1, ArtifactChunks: 1}) {
		t.Errorf("rows are left: %+v", got)
	}
	// And a name that is gone begins anew.
	if v := b.save(anna, "notes", []byte("again")); v.Number != 0 {
		t.Errorf("the first version after a deletion is %d", v.Number)
	}
	// Deleting the last version one by one leaves no name either.
	remove("notes", 0, 1)
	if diff := cmp.Diff([]string{"other"}, b.names(anna)); diff != "" {
		t.Error(diff)
	}
}

func TestService_UserNames(t *testing.T) {
	b := setup(t)
	tuesday := session(anna, "tuesday")
	nowhere := session(anna, "")
	b.save(anna, "report", []byte("monday's"))
	b.save(tuesday, "report", []byte("tuesday's"))
	b.save(nowhere, "user:face", []byte("anna"))
	b.save(tuesday, "user:face", []byte("anna, older"))
	for o, want := range map[artifacts.Owner][]string{
		anna: {"report", "user:face"}, tuesday: {"report", "user:face"}, nowhere: {"user:face"},
		session(anna, "never"): {"user:face"}, {App: "pharmacy", UserID: "bernd"}: {}, {App: "bakery", UserID: "anna", SessionID: "monday"}: {},
	} {
		got := b.names(o)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", o, diff)
		}
	}
	b.holds(anna, "user:face", artifacts.Latest, []byte("anna, older"))
	b.holds(nowhere, "user:face", 0, []byte("anna"))
	b.holds(anna, "report", 0, []byte("monday's"))
	b.holds(tuesday, "report", 0, []byte("tuesday's"))
	for _, name := range []string{"report", "", "user:", "*", "user:*", "user:%%"} {
		if _, err := b.a.Save(t.Context(), b.tenant, nowhere, name, artifacts.File{}, bytes.NewReader(nil)); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("saving %q without a session: %v", name, err)
		}
		if _, err := b.a.Delete(t.Context(), b.tenant, nowhere, name, artifacts.All); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("deleting %q without a session: %v", name, err)
		}
	}
}

func TestService_OthersSeeNothing(t *testing.T) {
	b := setup(t)
	globex := b.Tenant("globex", b.policy())
	b.save(anna, "diary", []byte("mine"))
	b.save(anna, "user:face", []byte("mine"))
	own := b.tenant
	for name, as := range map[string]func() artifacts.Owner{
		"another user":    func() artifacts.Owner { return artifacts.Owner{App: "pharmacy", UserID: "bernd", SessionID: "monday"} },
		"another session": func() artifacts.Owner { return session(anna, "tuesday") },
		"another app":     func() artifacts.Owner { return artifacts.Owner{App: "bakery", UserID: "anna", SessionID: "monday"} },
		"another tenant": func() artifacts.Owner {
			b.tenant = artifacts.Tenant{No: globex.No, Epoch: globex.Epoch}
			return anna
		},
	} {
		b.tenant = own
		o := as()
		b.gone(o, "diary", artifacts.Latest)
		if name != "another session" {
			b.gone(o, "user:face", 0)
		}
		if n, err := b.a.Delete(t.Context(), b.tenant, o, "diary", artifacts.All); n != 0 || err != nil {
			t.Errorf("%s deleted %d versions, %v", name, n, err)
		}
		// Somebody who is there under the same names has their own.
		b.save(o, "diary", []byte("theirs"))
		b.holds(o, "diary", 0, []byte("theirs"))
	}
	b.tenant = own
	b.holds(anna, "diary", artifacts.Latest, []byte("mine"))
	if diff := cmp.Diff([]int64{0}, b.versions(anna, "diary")); diff != "" {
		t.Error(diff)
	}
}

func TestService_ConcurrentSavesOfOneName(t *testing.T) {
	b := setup(t)
	const writers = 12
	var wg sync.WaitGroup
	numbers := make([]int64, writers)
	for i := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			v, err := b.a.Save(t.Context(), b.tenant, anna, "notes", artifacts.File{}, bytes.NewReader(fmt.Appendf(nil, "writer %d", i)))
			if err != nil {
				t.Errorf("writer %d: %v", i, err)
			}
			numbers[i] = v.Number
		}()
	}
	wg.Wait()
	for i, n := range numbers {
		b.holds(anna, "notes", n, fmt.Appendf(nil, "writer %d", i))
	}
	slices.Sort(numbers)
	for i, n := range numbers {
		if n != int64(i) {
			t.Fatalf("numbers are not 0 to %d, each once: %v", writers-1, numbers)
		}
	}
}

// A deletion that clears the first page only is a failure of others.
func TestService_ListsAndDeletesBeyondEveryPage(t *testing.T) {
	b := setup(t)
	const n = 101
	for i := range n {
		b.save(anna, fmt.Sprintf("file %03d", i), nil)
		b.save(anna, "many", nil)
	}
	var names []string
	for token, first := "", true; first || token != ""; first = false {
		page, err := b.a.List(t.Context(), b.tenant, anna, 10, token)
		if err != nil || len(page.Names) > 10 {
			t.Fatalf("%d names, %v", len(page.Names), err)
		}
		for _, name := range page.Names {
			names = append(names, name.Name)
		}
		token = page.Next
	}
	if len(names) != n+1 || names[0] != "file 000" || names[1] != "many" || names[n] != "file 100" {
		t.Errorf("%d names: %v", len(names), names)
	}
	vs, err := b.a.ListVersions(t.Context(), b.tenant, anna, "many", 30, 89)
	if err != nil || len(vs) != n-90 || vs[0].Number != 90 {
		t.Errorf("the last page of versions has %d, %v", len(vs), err)
	}
	if deleted, err := b.a.Delete(t.Context(), b.tenant, anna, "many", artifacts.All); err != nil || deleted != n {
		t.Errorf("deleted %d versions, %v", deleted, err)
	}
	if got := b.total(); got.ArtifactVersions != n || got.ArtifactChunks != n {
		t.Errorf("%+v is left", got)
	}
	for _, bad := range []string{"x", "AAAA", "////"} {
		if _, err := b.a.List(t.Context(), b.tenant, anna, 10, bad); !errors.Is(err, memd.ErrInvalid) {
			t.Errorf("page token %q: %v", bad, err)
		}
	}
}

func TestService_MaxBytes(t *testing.T) {
	b := setup(t)
	small, err := artifacts.New(artifacts.Config{Pool: b.srv.Pool, Keyring: b.srv.Keyring, Directory: b.srv.Directory, MaxBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	b.a = small.WithChunks(64, 3)
	b.save(anna, "fits", noise(1, 1000))
	_, err = b.a.Save(t.Context(), b.tenant, anna, "large", artifacts.File{}, bytes.NewReader(noise(1, 1001)))
	if !errors.Is(err, memd.ErrInvalid) {
		t.Errorf("1001 bytes: %v", err)
	}
	if got := b.total(); got.ArtifactVersions != 1 || got.Artifacts != 1 {
		t.Errorf("the refused save left %+v", got)
	}
}
