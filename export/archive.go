package export

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sort"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
)

// tarBlock is what a tar is made of: a header takes one, an end two.
const tarBlock = 512

// Archive is a ready archive as the one file that it is downloaded as: a tar of
// its files, put together as it is read. An io.ReadSeeker, so that a download can
// be gone on with. Not safe for concurrent use.
type Archive struct {
	// Digest names its content: that of its manifest.
	Digest string
	Made   time.Time
	Size   int64

	ctx    context.Context
	store  Store
	check  func() error
	pieces []piece
	at     int64
	open   io.ReadCloser // of the piece at at
}

// piece is a stretch of the file: bytes, or an object.
type piece struct {
	start, size int64
	bytes       []byte
	object      uuid.UUID
}

// OpenArchive puts a ready archive together. check is asked before each of its
// files is begun, and its error ends the reading. An archive that is not ready is
// memd.ErrExportNotReady.
func OpenArchive(ctx context.Context, db pg.DB, store Store, tenant memd.TenantNo, id uuid.UUID, check func() error) (*Archive, error) {
	if store == nil {
		return nil, fmt.Errorf("opening an archive: %w", memd.ErrExportsUnavailable)
	}
	e, err := Get(ctx, db, tenant, id)
	if err != nil {
		return nil, err
	}
	if e.State != StateReady {
		return nil, memd.ErrExportNotReady
	}
	files, err := partsOf(ctx, db, e)
	if err != nil {
		return nil, err
	}
	files = append(files, file{Part: Part{Name: manifestName, Size: e.size}, object: e.manifest})
	a := &Archive{Digest: hex.EncodeToString(e.ManifestSHA256), Made: e.ReadyAt, ctx: ctx, store: store, check: check}
	for _, f := range files {
		var header bytes.Buffer
		err := tar.NewWriter(&header).WriteHeader(&tar.Header{
			Name: f.Name, Size: f.Size, Mode: 0o600, Typeflag: tar.TypeReg, ModTime: e.ReadyAt.Truncate(time.Second), Format: tar.FormatGNU,
		})
		if err != nil {
			return nil, fmt.Errorf("describing a file of an archive: %w", err)
		}
		a.add(piece{bytes: header.Bytes()})
		a.add(piece{size: f.Size, object: f.object})
		a.add(piece{bytes: make([]byte, -f.Size&(tarBlock-1))})
	}
	a.add(piece{bytes: make([]byte, 2*tarBlock)})
	return a, nil
}

func (a *Archive) add(p piece) {
	p.start = a.Size
	if p.object == uuid.Nil {
		p.size = int64(len(p.bytes))
	}
	if p.size > 0 {
		a.pieces = append(a.pieces, p)
		a.Size += p.size
	}
}

// Read implements io.Reader.
func (a *Archive) Read(b []byte) (int, error) {
	if a.at >= a.Size {
		return 0, io.EOF
	}
	p := a.pieces[sort.Search(len(a.pieces), func(i int) bool { return a.pieces[i].start+a.pieces[i].size > a.at })]
	into := a.at - p.start
	if p.object == uuid.Nil {
		n := copy(b, p.bytes[into:])
		a.at += int64(n)
		return n, nil
	}
	if a.open == nil {
		if err := a.check(); err != nil {
			return 0, err
		}
		var err error
		if a.open, err = a.store.Read(a.ctx, p.object, into, p.size-into); err != nil {
			return 0, err
		}
	}
	n, err := a.open.Read(b[:min(int64(len(b)), p.size-into)])
	a.at += int64(n)
	if a.at == p.start+p.size {
		return n, a.Close()
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("a file of an archive is cut off: %w", memd.ErrCorrupt)
	}
	return n, err
}

// Seek implements io.Seeker.
func (a *Archive) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += a.at
	case io.SeekEnd:
		offset += a.Size
	}
	if offset < 0 {
		return 0, errors.New("seeking before the beginning of an archive")
	}
	if offset != a.at {
		if err := a.Close(); err != nil {
			return 0, err
		}
		a.at = offset
	}
	return offset, nil
}

// Close lets go of what is being read. The archive can be read on.
func (a *Archive) Close() error {
	if a.open == nil {
		return nil
	}
	err := a.open.Close()
	a.open = nil
	return wrap("closing an object", err)
}
