package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// Latest asks for the version with the highest number.
const Latest int64 = -1

// What a reader may see: complete versions of an owner who is not being erased,
// asked in the statement that reads them.
const sqlVisibleVersions = `
FROM memd.artifact_owners o
JOIN memd.artifacts a ON a.tenant_no = o.tenant_no AND a.subject_no = o.subject_no AND a.session_no = o.session_no
JOIN memd.artifact_versions v ON v.tenant_no = a.tenant_no AND v.subject_no = a.subject_no AND v.session_no = a.session_no
  AND v.artifact_id = a.artifact_id
WHERE o.tenant_no = @tenant AND o.user_ref = @ref AND o.subject_no = @subject AND o.session_no = @session
  AND a.name_digest = @digest`

const sqlGetVersion = sqlVersionColumns + sqlVisibleVersions + ` AND v.version = @version`

const sqlLatestVersion = sqlVersionColumns + sqlVisibleVersions + ` ORDER BY v.version DESC LIMIT 1`

const sqlReadChunks = `
SELECT c.chunk_no, c.sealed
FROM memd.artifact_owners o
JOIN memd.artifact_versions v ON v.tenant_no = o.tenant_no AND v.subject_no = o.subject_no AND v.session_no = o.session_no
JOIN memd.artifact_chunks c ON c.tenant_no = v.tenant_no AND c.subject_no = v.subject_no AND c.session_no = v.session_no
  AND c.version_id = v.version_id
WHERE o.tenant_no = @tenant AND o.user_ref = @ref AND o.subject_no = @subject AND o.session_no = @session
  AND v.version_id = @save AND v.version IS NOT NULL AND c.chunk_no BETWEEN @first AND @last
ORDER BY c.chunk_no`

// GetVersion describes one version of a name, or its Latest. What is not there,
// is another's, or belongs to somebody who is being erased is memd.ErrNotFound,
// all alike.
func (s *Service) GetVersion(ctx context.Context, t Tenant, o Owner, name string, version int64) (Version, error) {
	c, err := s.find(ctx, t, o, name, version)
	if err != nil {
		return Version{}, err
	}
	return c.Version, nil
}

// find is one version, its description opened.
func (s *Service) find(ctx context.Context, t Tenant, o Owner, name string, version int64) (*Content, error) {
	if err := validateName(o, name); err != nil {
		return nil, err
	}
	if version < Latest {
		return nil, invalid("version", "must not be negative")
	}
	c := &Content{s: s, t: t, o: o}
	err := s.again(ctx, t, o, func(k *shred.Keys) error {
		return s.Pool.With(ctx, func(db pg.DB) error {
			p, err := placeOf(ctx, db, k, o, name)
			if err != nil {
				return err
			}
			if c.stored, err = readVersion(ctx, db, k, o, p, name, version); err != nil {
				return err
			}
			c.Version, c.info, err = c.open(k, name)
			return err
		})
	})
	return c, shreddedIsGone(err)
}

func readVersion(ctx context.Context, db pg.DB, k *shred.Keys, o Owner, p place, name string, version int64) (stored, error) {
	digest, err := p.digest(k, name)
	if err != nil {
		return stored{}, err
	}
	ref := userRef(k, o)
	args := pg.Args{"tenant": k.Tenant(), "ref": ref[:], "subject": p.Subject, "session": p.Session, "digest": digest}
	sql := sqlLatestVersion
	if version != Latest {
		sql, args["version"] = sqlGetVersion, version
	}
	rows, err := db.Query(ctx, sql, args)
	if err != nil {
		return stored{}, fmt.Errorf("reading a version: %w", err)
	}
	found, err := pgx.CollectExactlyOneRow(rows, scanStored)
	if errors.Is(err, pgx.ErrNoRows) {
		return stored{}, memd.ErrNotFound
	}
	if err != nil {
		return stored{}, fmt.Errorf("reading a version: %w", err)
	}
	return found, nil
}

// Content is the bytes of a version, or a range of them, on their way out. It
// holds neither a transaction nor a connection between two calls of Next. Not
// safe for concurrent use; it needs no closing.
type Content struct {
	Version
	// Offset and Length are the range that Next returns, cut to the version.
	Offset, Length int64

	s      *Service
	t      Tenant
	o      Owner
	stored stored
	info   info
	at     int64    // of the next byte
	ready  [][]byte // opened chunks from at on
}

// open is stored.open.
func (c *Content) open(k *shred.Keys, name string) (Version, info, error) {
	return c.stored.open(k, name)
}

// Load opens one version of a name, or its Latest, from offset on and at most
// length bytes of it; length 0 means to the end. A range may reach past the end,
// but not begin there: that is an *memd.InvalidError, unless the version ends
// where the range begins. Errors as those of GetVersion.
func (s *Service) Load(ctx context.Context, t Tenant, o Owner, name string, version, offset, length int64) (*Content, error) {
	if offset < 0 {
		return nil, invalid("offset", "must not be negative")
	}
	if length < 0 {
		return nil, invalid("length", "must not be negative")
	}
	c, err := s.find(ctx, t, o, name, version)
	if err != nil {
		return nil, err
	}
	if offset > c.Size {
		return nil, invalid("offset", "lies beyond the end of the artifact")
	}
	c.Offset, c.Length, c.at = offset, c.Size-offset, offset
	if length > 0 {
		c.Length = min(c.Length, length)
	}
	return c, nil
}

// Next returns the next bytes of the range, and io.EOF after the last. Besides
// those of GetVersion, memd.ErrNotFound also when the version is deleted, or
// its owner erased, while it is being read, and memd.ErrCorrupt when a chunk is
// missing or is not the one that was saved.
func (c *Content) Next(ctx context.Context) ([]byte, error) {
	end := c.Offset + c.Length
	if c.at >= end {
		return nil, io.EOF
	}
	if len(c.ready) == 0 {
		if err := c.fetch(ctx, end); err != nil {
			return nil, err
		}
	}
	b := c.ready[0]
	c.ready = c.ready[1:]
	b = b[c.at%int64(c.info.Chunk):]
	b = b[:min(int64(len(b)), end-c.at)]
	c.at += int64(len(b))
	return b, nil
}

// fetch reads and opens the next group of chunks.
func (c *Content) fetch(ctx context.Context, end int64) error {
	first := int32(c.at / int64(c.info.Chunk))
	last := min(int32((end-1)/int64(c.info.Chunk)), first+int32(c.s.group)-1)
	err := c.s.again(ctx, c.t, c.o, func(k *shred.Keys) error {
		c.ready = nil
		sealed, err := c.read(ctx, k, first, last)
		if err != nil {
			return err
		}
		sealer, err := c.stored.content(k)
		if err != nil {
			return fmt.Errorf("deriving an artifact's key: %w", err)
		}
		for i, b := range sealed {
			plain, err := c.openChunk(sealer, first+int32(i), b)
			if err != nil {
				return err
			}
			c.ready = append(c.ready, plain)
		}
		return nil
	})
	return shreddedIsGone(err)
}

func (c *Content) openChunk(sealer *shred.Sealer, no int32, sealed []byte) ([]byte, error) {
	last := no == c.info.Chunks-1
	plain, err := sealer.Open(sealed, shred.AADArtifactChunk(c.t.No, c.stored.Contribution, c.stored.save, no, last))
	if err != nil {
		return nil, fmt.Errorf("opening a chunk: %w", err)
	}
	want := int64(c.info.Chunk)
	if last {
		want = c.Size - int64(no)*want
	}
	if int64(len(plain)) != want {
		return nil, fmt.Errorf("a chunk has another size than it was sealed with: %w", memd.ErrCorrupt)
	}
	return plain, nil
}

// read returns the sealed chunks from first to last, all of them.
func (c *Content) read(ctx context.Context, k *shred.Keys, first, last int32) ([][]byte, error) {
	var sealed [][]byte
	ref := userRef(k, c.o)
	err := c.s.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sqlReadChunks, pg.Args{
			"tenant": c.t.No, "ref": ref[:], "subject": c.stored.Subject, "session": c.stored.Session,
			"save": c.stored.save, "first": first, "last": last,
		})
		if err != nil {
			return err
		}
		sealed = make([][]byte, 0, last-first+1)
		var no int32
		var b []byte
		_, err = pgx.ForEachRow(rows, []any{&no, &b}, func() error {
			if no != first+int32(len(sealed)) {
				return memd.ErrCorrupt
			}
			sealed, b = append(sealed, b), nil
			return nil
		})
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading chunks: %w", err)
	case len(sealed) == 0:
		// Deleted, or a fence went up: nothing at all is visible then.
		return nil, c.missing(ctx, k)
	case len(sealed) != int(last-first)+1:
		return nil, fmt.Errorf("chunks are missing: %w", memd.ErrCorrupt)
	}
	return sealed, nil
}

// missing tells a version that is gone from one whose chunks are.
func (c *Content) missing(ctx context.Context, k *shred.Keys) error {
	return c.s.Pool.With(ctx, func(db pg.DB) error {
		s, err := readVersion(ctx, db, k, c.o, c.stored.place, c.Name, c.Number)
		switch {
		case err != nil:
			return err
		case s.save != c.stored.save:
			return memd.ErrNotFound // deleted, and its number given out again
		}
		return fmt.Errorf("chunks are missing: %w", memd.ErrCorrupt)
	})
}

// Copy writes the rest of the range to w. It is Next in a loop.
func (c *Content) Copy(ctx context.Context, w io.Writer) (int64, error) {
	var written int64
	for {
		b, err := c.Next(ctx)
		if errors.Is(err, io.EOF) {
			return written, nil
		}
		if err != nil {
			return written, err
		}
		n, err := w.Write(b)
		written += int64(n)
		if err != nil {
			return written, fmt.Errorf("writing an artifact: %w", err)
		}
	}
}
