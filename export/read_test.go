package export_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"forgettable.dev/memd/export"
)

// member is a file of an archive.
type member struct {
	name    string
	content []byte
}

func unpack(t *testing.T, archive []byte) (all []member) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		content, readErr := io.ReadAll(r)
		if err = errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		all = append(all, member{h.Name, content})
	}
}

func pack(t *testing.T, all []member) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range all {
		err := w.WriteHeader(&tar.Header{Name: m.name, Size: int64(len(m.content)), Mode: 0o600})
		if err == nil {
			_, err = w.Write(m.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// What was done to an archive is found, and the file is named.
func TestRead_NamesWhatIsWrong(t *testing.T) {
	b := setup(t)
	archive := b.download(b.exported(b.worker(b.store)))
	whole := unpack(t, archive)
	if len(whole) != 4 {
		t.Fatalf("%d files", len(whole))
	}
	problems := func(all []member) string {
		r, err := export.Read(bytes.NewReader(pack(t, all)), nil, b.identity)
		if err != nil {
			return err.Error()
		}
		return strings.Join(r.Problems, "; ")
	}
	if got := problems(whole); got != "" {
		t.Fatalf("untouched: %s", got)
	}
	for _, c := range []struct {
		what string
		do   func([]member) []member
		want string
	}{
		{"missing", func(m []member) []member { return slices.Delete(m, 1, 2) }, "part-000002.age is missing"},
		{"swapped", func(m []member) []member { m[0].content, m[1].content = m[1].content, m[0].content; return m }, "part-000001.age was swapped: it is part-000002.age; part-000002.age was swapped: it is part-000001.age"},
		{"twice", func(m []member) []member { m[2].content = m[0].content; return m }, "part-000003.age was swapped: it is part-000001.age"},
		{"cut short", func(m []member) []member { m[1].content = m[1].content[:len(m[1].content)/2]; return m }, "part-000002.age is damaged"},
		{"longer", func(m []member) []member { m[1].content = append(slices.Clone(m[1].content), 0); return m }, "part-000002.age is damaged"},
		{"another's", func(m []member) []member { return append([]member{{"part-000009.age", m[0].content}}, m...) }, "part-000009.age is not of this archive"},
		{"without its manifest", func(m []member) []member { return m[:3] }, "manifest.age is missing"},
	} {
		if got := problems(c.do(slices.Clone(whole))); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
	for i, m := range whole {
		for at := 0; at < len(m.content); at += 1 + len(m.content)/7 {
			changed := slices.Clone(whole)
			changed[i].content = slices.Clone(m.content)
			changed[i].content[at] ^= 1
			if got := problems(changed); !strings.Contains(got, m.name) {
				t.Fatalf("byte %d of %s changed: %q", at, m.name, got)
			}
		}
	}
	r, err := export.Read(bytes.NewReader(archive[:len(archive)*3/4]), nil, b.identity)
	if err != nil || len(r.Problems) == 0 {
		t.Errorf("cut off: %v, %q", err, r.Problems)
	}
}
