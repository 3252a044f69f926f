package export

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"filippo.io/age"
)

// Report is what reading an archive has shown.
type Report struct {
	Manifest Manifest
	// ManifestSHA256 is of the manifest as it lies in the archive. Whoever knows the
	// customer's public key can make archives: compare it with what memd says.
	ManifestSHA256 string
	// Problems name each file that is damaged, missing, swapped or not of this
	// archive. None: it is whole, and as it was made.
	Problems []string
}

// Sink takes the files of an archive, decrypted. Names are plain: letters, digits,
// dots, hyphens, and slashes between.
type Sink func(name string) (io.WriteCloser, error)

// Read reads an archive from beginning to end, opens it with the customer's
// identities and compares all of it with its manifest: sums, counts, completeness.
// What is wrong with it is in the report. Files go to sink, if there is one, as they
// are read: they are as they were made only if the report has no problems. Of an
// archive one buffer is in memory, and the sums of one subject's artifacts. An
// error says that it could not be read at all, or that no identity opens it.
func Read(r io.Reader, sink Sink, identities ...age.Identity) (Report, error) {
	if sink == nil {
		sink = func(string) (io.WriteCloser, error) { return discard{io.Discard}, nil }
	}
	a := &reading{sink: sink, identities: identities, parts: map[string]Part{}}
	outer := tar.NewReader(bufio.NewReaderSize(r, 1<<20))
	for {
		h, err := outer.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			a.problem("the archive", "is cut off or damaged behind %s", a.last())
			break
		}
		if err := a.file(h.Name, outer); err != nil {
			return a.Report, err
		}
	}
	a.compare()
	return a.Report, nil
}

type discard struct{ io.Writer }

// Close implements io.Closer.
func (discard) Close() error { return nil }

type reading struct {
	Report
	sink       Sink
	identities []age.Identity
	parts      map[string]Part
	order      []string
	damaged    map[string]bool
	manifest   bool
}

func (a *reading) problem(what, format string, args ...any) {
	a.Problems = append(a.Problems, what+" "+fmt.Sprintf(format, args...))
}

func (a *reading) last() string {
	if len(a.order) == 0 {
		return "its beginning"
	}
	return a.order[len(a.order)-1]
}

// file reads one file of the archive: whatever is in it, all of it is summed.
func (a *reading) file(name string, r io.Reader) error {
	sum := &summed{w: io.Discard, sum: sha256.New()}
	all := io.TeeReader(r, sum)
	var counts Counts
	plain, err := age.Decrypt(all, a.identities...)
	var none *age.NoIdentityMatchError
	if errors.As(err, &none) {
		return fmt.Errorf("%s: none of the identities opens it", name)
	}
	if err == nil && name == manifestName {
		err = a.readManifest(plain)
	} else if err == nil {
		counts, err = a.part(name, plain)
	}
	var broken *sinkError
	if errors.As(err, &broken) {
		return broken.err
	}
	if err != nil {
		a.problem(name, "is damaged")
		if a.damaged == nil {
			a.damaged = map[string]bool{}
		}
		a.damaged[name] = true
	}
	if _, err := io.Copy(io.Discard, all); err != nil {
		a.problem(name, "is cut off")
	}
	digest := hex.EncodeToString(sum.sum.Sum(nil))
	a.order = append(a.order, name)
	if name == manifestName {
		a.ManifestSHA256 = digest
		return nil
	}
	a.parts[name] = Part{Name: name, Size: sum.n, SHA256: digest, Counts: counts}
	return nil
}

// sinkError is the reader's own trouble, not the archive's.
type sinkError struct{ err error }

// Error implements error.
func (e *sinkError) Error() string { return e.err.Error() }

func (a *reading) readManifest(r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &a.Manifest); err != nil {
		return fmt.Errorf("reading a manifest: %w", err)
	}
	a.manifest = true
	return a.write("manifest.json", func(w io.Writer) error { _, err := w.Write(b); return err })
}

// compare compares what was read with the manifest.
func (a *reading) compare() {
	if !a.manifest {
		if !slices.Contains(a.order, manifestName) {
			a.problem(manifestName, "is missing")
		}
		return
	}
	if a.Manifest.Format != Format {
		a.problem(manifestName, "is of another format, %q", a.Manifest.Format)
		return
	}
	var totals Counts
	bySum := map[string]string{}
	for _, want := range a.Manifest.Parts {
		bySum[want.SHA256] = want.Name
		totals.add(want.Counts)
	}
	for _, want := range a.Manifest.Parts {
		got, ok := a.parts[want.Name]
		delete(a.parts, want.Name)
		switch {
		case !ok:
			a.problem(want.Name, "is missing")
		case got.SHA256 != want.SHA256 && bySum[got.SHA256] != "":
			a.problem(want.Name, "was swapped: it is %s", bySum[got.SHA256])
		case got.SHA256 != want.SHA256 && !a.damaged[want.Name]:
			a.problem(want.Name, "is not as it was made")
		case got.SHA256 == want.SHA256:
			want.Unreadable = 0
			got.Unreadable = 0
			if got.Counts != want.Counts {
				a.problem(want.Name, "has other counts than the manifest says")
			}
		}
	}
	for name := range a.parts {
		a.problem(name, "is not of this archive")
	}
	if totals != a.Manifest.Totals {
		a.problem(manifestName, "has totals that are not those of its parts")
	}
}

func (a *reading) write(name string, content func(io.Writer) error) error {
	w, err := a.sink(name)
	if err != nil {
		return &sinkError{err}
	}
	err = content(w)
	if closeErr := w.Close(); err == nil && closeErr != nil {
		return &sinkError{closeErr}
	}
	return err
}

// plainName is what memd calls files in a part.
var plainName = regexp.MustCompile(`^subjects/[0-9]+\.[0-9]+/(artifacts/)?[A-Za-z0-9][A-Za-z0-9.-]*$`)

// part reads a part: it counts lines, and sums artifacts.
func (a *reading) part(name string, r io.Reader) (Counts, error) {
	var c Counts
	inner := tar.NewReader(r)
	sums := map[string]string{}
	folder := ""
	for {
		h, err := inner.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r)
			return c, err
		}
		if err != nil {
			return c, err
		}
		if !plainName.MatchString(h.Name) || h.Typeflag != tar.TypeReg {
			return c, errors.New("a file has a name that memd gives to none")
		}
		dir, file, _ := strings.Cut(strings.TrimPrefix(h.Name, "subjects/"), "/")
		if dir != folder {
			clear(sums)
			folder = dir
		}
		err = a.write(h.Name, func(w io.Writer) error {
			switch {
			case path.Dir(file) == "artifacts":
				c.Artifacts++
				c.ArtifactBytes += h.Size
				sum := sha256.New()
				if _, err := io.Copy(io.MultiWriter(w, sum), inner); err != nil {
					return err
				}
				sums[file] = hex.EncodeToString(sum.Sum(nil))
				return nil
			case file == subjectFile:
				c.Subjects++
				_, err := io.Copy(w, inner)
				return err
			}
			kind, _, _ := strings.Cut(file, ".")
			return eachLine(io.TeeReader(inner, w), func(line []byte) error { return a.line(name, kind, line, sums, &c) })
		})
		if err != nil {
			return c, err
		}
	}
}

func eachLine(r io.Reader, fn func([]byte) error) error {
	lines := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(line); err != nil {
			return err
		}
	}
}

func (a *reading) line(part, kind string, line []byte, sums map[string]string, c *Counts) error {
	if !json.Valid(line) {
		return errors.New("a line is no JSON")
	}
	switch kind {
	case sessionLines:
		c.Sessions++
	case eventLines:
		c.Events++
	case stateLines:
		c.State++
	case memoryLines, elsewhere:
		c.Memories++
	case artifactLines:
		var r ArtifactRecord
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("reading a line: %w", err)
		}
		if sums[r.File] != r.SHA256 {
			a.problem(part, "has an artifact, %s, that is not as it was made", r.File)
		}
	}
	return nil
}
