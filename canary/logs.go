package canary

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"forgettable.dev/memd"
	"forgettable.dev/memd/internal/pg"
	"forgettable.dev/memd/shred"
)

// Bounds of what is looked for in logs, and how much of the end of each file is
// read. Shorter ids are in every log by chance.
const (
	maxIdentifiers = 256
	minIdentifier  = 4
	logSample      = 8 << 20
)

const sqlUserIDs = `
SELECT s.subject_no, s.sealed_user_id FROM memd.subjects s
WHERE s.tenant_no = @tenant AND s.subject_no = ANY (@subjects::bigint[]) AND s.sealed_user_id <> '' ORDER BY s.subject_no LIMIT @limit`

const sqlSessionIDs = `
SELECT x.subject_no, x.session_no, x.sealed_id FROM unnest(@subjects::bigint[], @sessions::bigint[]) AS t (subject_no, session_no)
JOIN memd.sessions x ON x.tenant_no = @tenant AND x.subject_no = t.subject_no AND t.session_no IN (0, x.session_no)
WHERE x.sealed_id <> '' ORDER BY x.subject_no, x.session_no LIMIT @limit`

// sealedName is a sealed id of a subject, or with a session, of that.
type sealedName struct {
	of     memd.Contribution
	sealed []byte
}

// identifiers opens the ids of what goes. Those of subjects that go as a whole,
// and of sessions: the user of a session that goes alone stays. It counts those
// that are not to be looked for.
func (v *Verifier) identifiers(ctx context.Context, e *exam) (out []string, unlooked int64, err error) {
	args := e.args()
	args["limit"] = maxIdentifiers + 1 // One more tells that there are more.
	var wholly []memd.Number
	for _, t := range e.Target {
		if t.Session == 0 {
			wholly = append(wholly, t.Subject)
		}
	}
	var names []sealedName
	err = v.c.Pool.With(ctx, func(db pg.DB) error {
		rows, err := db.Query(ctx, sqlUserIDs, pg.Args{"tenant": e.Tenant, "subjects": wholly, "limit": maxIdentifiers + 1})
		if err != nil {
			return err
		}
		users, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (n sealedName, err error) {
			return n, r.Scan(&n.of.Subject, &n.sealed)
		})
		if err != nil {
			return err
		}
		if rows, err = db.Query(ctx, sqlSessionIDs, args); err != nil {
			return err
		}
		sessions, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (n sealedName, err error) {
			return n, r.Scan(&n.of.Subject, &n.of.Session, &n.sealed)
		})
		names = append(users, sessions...)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("reading the directory: %w", err)
	}
	err = v.c.Keys.Do(ctx, e.Tenant, 0, func(k *shred.Keys) error {
		out, unlooked = nil, 0
		for _, n := range names {
			id, err := n.open(k)
			switch {
			case errors.Is(err, memd.ErrShredded), errors.Is(err, memd.ErrCorrupt):
			case err != nil:
				return err
			case len(id) >= minIdentifier && len(out) < maxIdentifiers:
				out = append(out, id)
			default:
				unlooked++
			}
		}
		return nil
	})
	return out, unlooked, err
}

func (n sealedName) open(k *shred.Keys) (string, error) {
	aad := shred.AADUserID(k.Tenant(), n.of.Subject)
	sealer, err := k.Subject(n.of.Subject)
	if n.of.Session != 0 {
		aad = shred.AADSessionID(k.Tenant(), n.of.Subject, n.of.Session)
		sealer, err = k.Session(n.of.Subject, n.of.Session)
	}
	if err != nil {
		return "", err
	}
	id, err := sealer.Open(n.sealed, aad)
	return string(id), err
}

// checkLogs looks for the ids in the ends of the configured log files. The
// control is a line of the same file, which the same search has to find. When
// some ids are not looked for, finding none of the others proves too little.
func (v *Verifier) checkLogs(ctx context.Context, d *drawn) memd.Check {
	began := time.Now()
	switch {
	case len(v.c.LogFiles) == 0:
		return notRun(CheckLogs, reasonNotSet, 0)
	case d == nil || len(d.Identifiers) == 0:
		return notRun(CheckLogs, reasonNoControl, 0)
	}
	var control, hits int64
	var rows []memd.RowRef
	for i, name := range v.c.LogFiles {
		sample, err := tail(name, logSample)
		if err != nil {
			v.c.Logger.WarnContext(ctx, "a log file could not be read for verification", "file", i)
			return notRun(CheckLogs, reasonUnavailable, control)
		}
		control += occurrences(sample, known(sample))
		n := int64(0)
		for _, id := range d.Identifiers {
			n += occurrences(sample, []byte(id))
			if quoted, err := json.Marshal(id); err == nil && string(quoted[1:len(quoted)-1]) != id {
				n += occurrences(sample, quoted[1:len(quoted)-1])
			}
		}
		if n > 0 {
			rows = append(rows, memd.RowRef{Table: "log", ID: strconv.Itoa(i)})
		}
		hits += n
	}
	c := judge(CheckLogs, control, hits, reasonLogHit)
	if c.Result == memd.ResultPass && d.Unlooked > 0 {
		c.Result, c.Reason = memd.ResultNotRun, reasonIncomplete
	}
	c.Rows, c.Unscanned, c.Duration = rows, d.Unlooked, time.Since(began)
	return c
}

// tail reads the last bytes of a file.
func tail(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // Read only.
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if from := info.Size() - limit; from > 0 {
		if _, err := f.Seek(from, io.SeekStart); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// known is a word that is in the sample for certain: its last one.
func known(sample []byte) []byte {
	words := bytes.FieldsFunc(sample[max(0, len(sample)-4096):], func(r rune) bool { return !alphanumeric(r) })
	for i := len(words) - 1; i >= 0; i-- {
		if len(words[i]) >= minIdentifier {
			return words[i]
		}
	}
	return nil
}

// occurrences counts where word stands alone in text.
func occurrences(text, word []byte) (n int64) {
	if len(word) == 0 {
		return 0
	}
	for at := 0; ; {
		i := bytes.Index(text[at:], word)
		if i < 0 {
			return n
		}
		begin, end := at+i, at+i+len(word)
		before, _ := utf8.DecodeLastRune(text[:begin])
		after, _ := utf8.DecodeRune(text[end:])
		if !wordy(before) && !wordy(after) {
			n++
		}
		at = begin + 1
	}
}

func wordy(r rune) bool { return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) }
