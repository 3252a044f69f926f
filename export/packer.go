package export

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"regexp"
	"slices"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/artifacts"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/memory"
	"forgettable.dev/memd/provenance"
	"forgettable.dev/memd/sessions"
	"forgettable.dev/memd/shred"
)

// linesBytes is how large a file of lines gets before the next begins: a tar says
// a file's size before the file.
const linesBytes = 1 << 20

// Names of the files in a subject's folder. Of lines, later ones have a number.
const (
	subjectFile   = "subject.json"
	sessionLines  = "sessions"
	eventLines    = "events"
	stateLines    = "state"
	artifactLines = "artifacts"
	memoryLines   = "memories"
	elsewhere     = "memories-elsewhere"
)

// window is what is let out of an export by time.
type window struct {
	now                time.Time
	sessions, memories memd.Month // the newest that retention leaves nothing of
}

// packer writes subjects into the tar of a part.
type packer struct {
	tar     *tar.Writer
	size    counted
	db      pg.DB
	k       *shred.Keys
	names   *provenance.Directory
	window  window
	counts  Counts
	members map[memd.Number]struct{}

	dir  string
	copy []byte
}

func newPacker(w io.Writer, db pg.DB, k *shred.Keys, names *provenance.Directory, win window) *packer {
	p := &packer{db: db, k: k, names: names, window: win, members: map[memd.Number]struct{}{}, copy: make([]byte, 256<<10)}
	p.size.w = w
	p.tar = tar.NewWriter(&p.size)
	return p
}

// counted counts what is written.
type counted struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// written is how large the part is so far.
func (p *packer) written() int64 { return p.size.n }

// subject writes all that a subject has. With alone it writes as well what in the
// scopes of others is the subject's alone.
func (p *packer) subject(ctx context.Context, s provenance.Subject, alone bool) error {
	p.dir = "subjects/" + s.Number.String()
	p.members[s.Number] = struct{}{}
	record, err := json.Marshal(SubjectRecord{
		Number: s.Number.String(), App: s.Scope.App, UserID: s.Scope.UserID, Shared: s.Scope.Shared(), AdmittedAt: s.AdmittedAt,
	})
	if err != nil {
		return fmt.Errorf("describing a subject: %w", err)
	}
	if err := p.file(subjectFile, record); err != nil {
		return err
	}
	p.counts.Subjects++
	ids, err := provenance.LivingSessions(ctx, p.db, p.k, s.Number)
	if err != nil {
		return err
	}
	for _, write := range []func() error{
		func() error { return p.sessions(ctx, s.Number, ids) },
		func() error { return p.artifacts(ctx, s.Number, ids) },
		func() error { return p.memories(ctx, s.Number, memoryLines, false) },
		func() error {
			if !alone {
				return nil
			}
			return p.memories(ctx, s.Number, elsewhere, true)
		},
	} {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) sessions(ctx context.Context, subject memd.Number, ids map[memd.Number]string) error {
	heads, events, state := p.lines(sessionLines), p.lines(eventLines), p.lines(stateLines)
	unreadable, err := sessions.Export(ctx, p.db, p.k, subject, p.window.sessions,
		func(h sessions.Head) error {
			id, ok := ids[h.Session]
			if !ok {
				return nil // Forgotten since it was named.
			}
			p.counts.Sessions++
			return heads.add(SessionRecord{SessionID: id, CreatedAt: h.CreatedAt, UpdatedAt: h.UpdatedAt, Events: h.Events})
		},
		func(session memd.Number, e sessions.Event) error {
			id, ok := ids[session]
			if !ok {
				return nil
			}
			p.counts.Events++
			return events.add(eventRecord(id, e))
		},
		func(e sessions.Entry) error {
			id, ok := ids[e.Session]
			if e.Session != 0 && !ok {
				return nil
			}
			if e.Contributor != 0 {
				p.members[e.Contributor] = struct{}{}
			}
			p.counts.State++
			return state.add(StateRecord{SessionID: id, Key: e.Key, Value: json.RawMessage(e.Value)})
		})
	p.counts.Unreadable += unreadable
	return errors.Join(err, heads.end(), events.end(), state.end())
}

// plainExt is an extension that no file system minds.
var plainExt = regexp.MustCompile(`^\.[A-Za-z0-9]{1,8}$`)

func (p *packer) artifacts(ctx context.Context, subject memd.Number, ids map[memd.Number]string) error {
	lines := p.lines(artifactLines)
	n := 0
	unreadable, err := artifacts.Export(ctx, p.db, p.k, subject, p.window.sessions,
		func(v artifacts.Version, session memd.Number, content io.Reader) error {
			id, ok := ids[session]
			if session != memd.OwnScope && !ok {
				return nil
			}
			n++
			r := artifactRecord(id, v)
			r.File = fmt.Sprintf("artifacts/%06d", n)
			if ext := path.Ext(v.Name); plainExt.MatchString(ext) {
				r.File += ext
			}
			if err := p.content(&r, content); err != nil {
				return err
			}
			p.counts.Artifacts++
			p.counts.ArtifactBytes += v.Size
			return lines.add(r)
		})
	p.counts.Unreadable += unreadable
	return errors.Join(err, lines.end())
}

// content writes an artifact's bytes. Of those that are damaged the rest is zeros,
// because the tar has said how many there are.
func (p *packer) content(r *ArtifactRecord, content io.Reader) error {
	if err := p.header(r.File, r.Size); err != nil {
		return err
	}
	sum := sha256.New()
	into := io.MultiWriter(p.tar, sum)
	written, err := io.CopyBuffer(onlyWriter{into}, content, p.copy)
	if errors.Is(err, memd.ErrCorrupt) {
		r.Damaged = true
		p.counts.Unreadable++
		_, err = io.CopyN(into, zeros{}, r.Size-written)
	}
	r.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return err
}

// onlyWriter keeps io.Copy to the buffer that it was given.
type onlyWriter struct{ io.Writer }

type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func (p *packer) memories(ctx context.Context, subject memd.Number, file string, alone bool) error {
	lines := p.lines(file)
	var last *memory.Exported
	for more := true; more; {
		page, further, unreadable, err := memory.ExportAfter(ctx, p.db, p.k, subject, alone, p.window.memories, p.window.now, last)
		p.counts.Unreadable += unreadable
		if err != nil {
			return err
		}
		more = further
		n, err := p.origins(ctx, page)
		if err != nil {
			return err
		}
		for i := range page {
			p.counts.Memories++
			r := memoryRecord(page[i], n)
			if alone {
				r.App = n.scopes[page[i].Owner].App
			}
			if err := lines.add(r); err != nil {
				return err
			}
			last = &page[i]
		}
	}
	return lines.end()
}

// origins names whose words a page of memories is of, and notes them.
func (p *packer) origins(ctx context.Context, page []memory.Exported) (names, error) {
	var of []memd.Contribution
	subjects := map[memd.Number]struct{}{}
	for _, m := range page {
		of = append(of, m.From...)
		for _, s := range m.DerivedFrom {
			if s.Session != (memd.Contribution{}) {
				of = append(of, s.Session)
			}
		}
		subjects[m.Owner] = struct{}{}
	}
	var numbers []memd.Number
	for _, c := range of {
		p.members[c.Subject] = struct{}{}
		subjects[c.Subject] = struct{}{}
	}
	for n := range subjects {
		numbers = append(numbers, n)
	}
	scopes, err := p.names.Scopes(ctx, p.db, p.k, numbers)
	if err != nil {
		return names{}, err
	}
	ids, err := p.names.SessionIDs(ctx, p.db, p.k, of)
	return names{scopes, ids}, err
}

// sorted returns who is in the part.
func (p *packer) sorted() []memd.Number {
	out := make([]memd.Number, 0, len(p.members))
	for n := range p.members {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

func (p *packer) header(name string, size int64) error {
	err := p.tar.WriteHeader(&tar.Header{Name: path.Join(p.dir, name), Size: size, Mode: 0o600, Typeflag: tar.TypeReg})
	if err != nil {
		return fmt.Errorf("beginning a file: %w", err)
	}
	return nil
}

func (p *packer) file(name string, content []byte) error {
	if err := p.header(name, int64(len(content))); err != nil {
		return err
	}
	_, err := p.tar.Write(content)
	return err
}

// lines collects a file of JSON lines, of which there are as many as it takes.
type lines struct {
	p       *packer
	name    string
	n       int
	pending bytes.Buffer
	encoder *json.Encoder
}

func (p *packer) lines(name string) *lines {
	l := &lines{p: p, name: name}
	l.encoder = json.NewEncoder(&l.pending)
	l.encoder.SetEscapeHTML(false)
	return l
}

// add adds a line. It is written at once if the file is large enough, so never
// while another file is being written.
func (l *lines) add(record any) error {
	if err := l.encoder.Encode(record); err != nil {
		return fmt.Errorf("encoding a line: %w", err)
	}
	if l.pending.Len() >= linesBytes {
		return l.end()
	}
	return nil
}

// end writes what has not been written.
func (l *lines) end() error {
	if l.pending.Len() == 0 {
		return nil
	}
	l.n++
	name := l.name + ".jsonl"
	if l.n > 1 {
		name = fmt.Sprintf("%s.%d.jsonl", l.name, l.n)
	}
	err := l.p.file(name, l.pending.Bytes())
	l.pending.Reset()
	return err
}

// all is above every number of a subject.
const all = memd.Number(math.MaxInt64)
