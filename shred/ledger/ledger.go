// Package ledger keeps what must survive the loss, or the rolling back, of the
// database: sealed key trees above all. It is small durable storage under
// write-once names.
//
// A Ledger is one location. A folder has a driver of memd's own, because the
// promise is strict: of several processes that write one name exactly one
// wins, a name is whole or not there at all, and what was acknowledged survives
// a crash. Buckets go through gocloud.dev/blob with its IfNotExist, which Google
// Cloud Storage and S3 keep the same promise for. Mirror joins several.
//
// Nothing in a ledger is ever overwritten or deleted by memd: what is in it is
// sealed, and dies with its key.
package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"forgettable.dev/memd"
)

// Ledger is one location of write-once storage, safe for concurrent use by any
// number of processes.
//
// Names are components of a-z, 0-9, '.', '_' and '-', joined by '/'; no
// component is empty, "." or "..", and none is longer than MaxComponent. Any
// other name gives a memd.ErrInvalid. A location that could not be asked gives
// memd.ErrLedgerUnavailable: whether a Put took effect is then unknown, and
// PutSame finds out.
type Ledger interface {
	// Put writes data under a new name. When it returns nil, data is durable.
	// A name that is taken gives memd.ErrExists, even with the same data: the
	// name decides who was first, as a compare-and-swap.
	Put(ctx context.Context, name string, data []byte) error
	// Get returns the data under a name, or memd.ErrNotFound.
	Get(ctx context.Context, name string) ([]byte, error)
	// List returns the names that start with prefix, sorted. The prefix need not
	// end at a '/'; the empty one lists everything.
	List(ctx context.Context, prefix string) ([]string, error)
}

const (
	// MaxName is the longest name, in bytes: S3's limit.
	MaxName = 1024
	// MaxComponent is the longest part between slashes: that of file systems.
	MaxComponent = 255
)

// Open opens one location: a folder by its path or as file:///path (created
// when missing), a bucket as gs://bucket, s3://bucket?region=R, or mem:// (kept
// in this process only, for tests). Bucket URLs take gocloud.dev/blob's
// parameters. The result may implement io.Closer.
func Open(ctx context.Context, url string) (Ledger, error) {
	scheme, rest, found := strings.Cut(url, "://")
	switch {
	case url == "":
		return nil, &memd.InvalidError{Field: "ledger", Problem: "must not be empty"}
	case !found:
		return OpenFolder(url)
	case scheme == "file":
		if !strings.HasPrefix(rest, "/") {
			return nil, &memd.InvalidError{Field: "ledger", Problem: "must be file:/// and an absolute path"}
		}
		return OpenFolder(rest)
	default:
		return OpenBucket(ctx, url)
	}
}

// PutSame is Put for who may have written the same before: a name that holds
// exactly data is success, and durable. One that holds anything else is
// memd.ErrExists. Safe to repeat; on a Mirror it completes every location.
func PutSame(ctx context.Context, l Ledger, name string, data []byte) error {
	if m, ok := l.(*Mirrored); ok {
		return m.putSame(ctx, name, data)
	}
	err := l.Put(ctx, name, data)
	if !errors.Is(err, memd.ErrExists) {
		return err
	}
	stored, getErr := l.Get(ctx, name)
	if getErr != nil {
		return fmt.Errorf("comparing with what is stored: %w", getErr)
	}
	if !bytes.Equal(stored, data) {
		return err
	}
	return nil
}

func checkName(name string) error {
	if name == "" || len(name) > MaxName {
		return errName
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || len(part) > MaxComponent || !plain(part) {
			return errName
		}
	}
	return nil
}

// checkPrefix accepts what some name could start with.
func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	// A full last component makes any prefix of a name a name.
	if strings.HasSuffix(prefix, "/") || strings.HasSuffix(prefix, ".") {
		return checkName(prefix + "x")
	}
	return checkName(prefix)
}

var errName = &memd.InvalidError{Field: "name", Problem: "is not a ledger name"}

func plain(part string) bool {
	for _, c := range []byte(part) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// unavailable keeps the foreign error's text out of the chain and its words in
// the message, where an operator needs them: paths and buckets, never content.
func unavailable(doing string, err error) error {
	return fmt.Errorf("%s: %w (%v)", doing, memd.ErrLedgerUnavailable, err)
}
