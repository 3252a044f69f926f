package export

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"

	"forgettable.dev/memd"
)

// Store is the place where archives are kept, safe for concurrent use by any
// number of processes. Names are random and say nothing. A place that could not be
// asked is memd.ErrExportsUnavailable.
type Store interface {
	// Write makes an object of what write writes. It is durable, and there at all,
	// when Write returns nil; a crash may leave a part of it, which List names.
	Write(ctx context.Context, name uuid.UUID, write func(io.Writer) error) error
	// Read returns length bytes of an object from offset on, or memd.ErrNotFound.
	Read(ctx context.Context, name uuid.UUID, offset, length int64) (io.ReadCloser, error)
	// Delete removes an object and what is left of one. One that is gone is no
	// error.
	Delete(ctx context.Context, name uuid.UUID) error
	// Exists reports whether anything of an object is there.
	Exists(ctx context.Context, name uuid.UUID) (bool, error)
	// List calls fn for every object of which anything is there.
	List(ctx context.Context, fn func(uuid.UUID) error) error
	Close() error
}

// OpenStore opens a folder by its path or as file:///path (created when missing),
// or a bucket as gs://bucket, s3://bucket?region=R, or mem:// for tests, with
// gocloud.dev/blob's parameters.
func OpenStore(ctx context.Context, url string) (Store, error) {
	scheme, rest, found := strings.Cut(url, "://")
	switch {
	case url == "":
		return nil, &memd.InvalidError{Field: "exports", Problem: "must not be empty"}
	case !found:
		return openFolder(url)
	case scheme == "file":
		return openFolder(rest)
	default:
		return openBucket(ctx, url)
	}
}

// unavailable keeps the foreign error out of the chain. Names are random.
func unavailable(doing string, err error) error {
	return fmt.Errorf("%s: %w (%v)", doing, memd.ErrExportsUnavailable, err)
}
