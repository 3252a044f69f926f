package memory

import (
	"encoding/binary"
	"errors"
	"slices"
	gosync "sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// resident is one scope in memory: of each row what filters need and, by the
// scope's tier, the vector in clear or its code. Texts and metadata stay sealed;
// once a filter has asked for metadata, its entries are there as hashes that mean
// nothing outside this process.
type resident struct {
	// load is held by whoever fills an empty scope, so that the others wait for
	// it instead of loading it too.
	load gosync.Mutex

	mu     gosync.RWMutex
	dead   bool // evicted: a newer resident may exist
	loaded bool
	tier   tier
	// outgrown is the number of rows at which the scope was found too large for its
	// vectors to be here.
	outgrown int
	loading  *loading // of a coded scope, while somebody loads it
	// resets tells who asked the database before a reset that the answer is
	// about what is no longer here.
	resets  uint64
	subject memd.Number
	snap    snapshot
	spaces
	entries []entry
	index   map[uuid.UUID]int
	sets    map[string][]memd.Contribution // contribution lists, shared by the rows that have them
	hidden  map[memd.Contribution]bool
	hashed  bool // the entries have their hashes
	lexicon lexicon
	extra   int64 // bytes of vectors, sealed columns, hashes and contribution lists

	// Of a coded scope, instead of entries.
	coded *codedRows
	// edits counts changes, and edited is the snapshot that the last of them is of.
	edits  uint64
	edited snapshot
}

// entry is one row of a resident scope. What a scan looks at comes first, so
// that it fetches one line of each.
type entry struct {
	vector           []float32 // none, or one of another embedder: nil
	expires          int64     // 0: never
	spoken           int64     // microseconds since 1970
	kind             Kind
	format           VectorFormat
	space            int16 // of the vector
	sourced          bool  // spoken is the source time
	norm             float32
	id               uuid.UUID
	version          int64
	contributions    []memd.Contribution
	text, metadata   []byte
	hashes           []uint64 // of the metadata's entries, where resident.hashed
	wording          *wording // of the text, where the lexicon is made
	created, updated int64
	month            memd.Month
}

// What a scope takes besides vectors and sealed columns, in bytes: each entry,
// each contribution of a list (twice: in the list and in the key by which it is
// found), and the scope itself, so that a million empty ones are not free.
const (
	entryBytes        = 256
	contributionBytes = 32
	residentBytes     = 1024
)

func newResident() *resident {
	return &resident{index: map[uuid.UUID]int{}, sets: map[string][]memd.Contribution{}, hidden: map[memd.Contribution]bool{}}
}

// bytes is what the scope takes. Callers hold mu.
func (r *resident) bytes() int64 {
	b := residentBytes + int64(len(r.entries))*entryBytes + r.extra
	if r.coded != nil {
		b += r.coded.bytes()
	}
	return b
}

// rows is how many the scope has in memory. Callers hold mu.
func (r *resident) rows() int {
	if r.coded != nil {
		return r.coded.n
	}
	return len(r.entries)
}

// reset empties the scope and zeroes its vectors and codes. Its tier stays.
// Callers hold mu for writing.
func (r *resident) reset() {
	wipe(r.entries)
	r.resets++
	r.edits++
	r.loaded, r.subject, r.snap, r.edited = false, 0, snapshot{}, snapshot{}
	r.entries, r.hashed, r.lexicon, r.extra = nil, false, lexicon{}, 0
	if r.coded != nil {
		r.coded.zero()
		r.coded = nil
	}
	clear(r.index)
	clear(r.sets)
	clear(r.hidden)
}

// wipe zeroes the entries' vectors and words.
func wipe(entries []entry) {
	for i := range entries {
		clear(entries[i].vector)
		if w := entries[i].wording; w != nil {
			clear(w.words)
		}
	}
}

// forget empties a scope that is not loaded: whoever is loading it right now
// may have read what was erased since, and starts over.
func (r *resident) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.loaded {
		r.reset()
	}
}

// filler is the sink that brings a resident up to date. It collects first and
// changes the resident at the end, in one step: a sync that fails half-way
// leaves it as it was.
type filler struct {
	r *resident
	k *shred.Keys
	spaces
	room    int   // rows that may still come
	tooMany int   // what room was, when more are known to come
	budget  int64 // bytes that may still come
	known   memd.Number
	resets  uint64 // of the resident, when it asked

	h       header
	hides   []memd.Contribution
	deleted []uuid.UUID
	rows    []entry // whose vectors are the filler's until apply has given them away

	// Of a coded scope, instead of rows, and who wants to know how far it is.
	coded    bool
	codes    *codedRows
	progress *atomic.Int64
	loaded   int64

	// Nearly all rows of a scope are of one conversation and one month: the last
	// row's contributions, and their key, are the next one's.
	contributions []memd.Contribution
	month         memd.Month
	sealer        *shred.Sealer
	buffer        []byte // of one opened vector
}

// outgrown reports whether more rows or bytes came than may be resident.
func (f *filler) outgrown() bool { return f.room < 0 || f.budget < 0 }

func (f *filler) begin(h header, hides []memd.Contribution, deleted []uuid.UUID) (bool, error) {
	f.h, f.hides, f.deleted = h, hides, deleted
	wanted := !h.fenced() && h.subject != 0
	if wanted && h.tooMany {
		f.tooMany, f.room = f.room, -1
		return false, errScopeTooBig
	}
	if wanted && f.coded && h.subject != f.known {
		if err := f.collect(h.subject); err != nil {
			return false, err
		}
	}
	return wanted, nil
}

func (f *filler) row(m *fetched) error {
	for _, h := range f.hides {
		if hidesRow(h, m.contributions, m.owner) {
			return nil
		}
	}
	version, known := f.has(m.id)
	if version >= m.version {
		return nil
	}
	if f.coded && (m.dimension != f.dim || m.space != f.space) { // nothing to find it by, or not any more
		if known {
			f.deleted = append(f.deleted, m.id)
		}
		return nil
	}
	if !known {
		f.room--
	}
	f.budget -= f.bytesOf(m)
	if f.outgrown() {
		return errScopeTooBig
	}
	s, err := f.key(m)
	if errors.Is(err, memd.ErrMonthExpired) {
		return nil // It is yet to be deleted.
	}
	if err != nil {
		return err
	}
	if f.coded {
		return f.code(m, s)
	}
	e := entryOf(m)
	e.contributions = f.contributions
	e.text, e.metadata = m.kept()
	if m.dimension == f.dim && m.space == f.space || m.dimension > 0 && m.space == f.former.Number {
		if e.vector, e.norm, err = m.openVector(f.k, s, make([]float32, 0, m.dimension), &f.buffer); err != nil {
			return err
		}
	}
	f.rows = append(f.rows, e)
	return nil
}

// key is the row's, and f.contributions are the row's own afterwards.
func (f *filler) key(m *fetched) (*shred.Sealer, error) {
	if f.sealer != nil && m.month == f.month && slices.Equal(m.contributions, f.contributions) {
		return f.sealer, nil
	}
	var err error
	f.contributions, f.month = slices.Clone(m.contributions), m.month
	f.sealer, err = f.k.Row(m.month, f.contributions) // Nil with an error.
	return f.sealer, err
}

// has returns the version of a row that the resident has already, so that it
// need not be opened again.
func (f *filler) has(id uuid.UUID) (version int64, ok bool) {
	if f.h.subject != f.known {
		return 0, false
	}
	f.r.mu.RLock()
	defer f.r.mu.RUnlock()
	if f.r.resets != f.resets {
		return 0, false
	}
	return f.r.version(id)
}

// version returns that of a row in memory. Callers hold mu.
func (r *resident) version(id uuid.UUID) (version int64, ok bool) {
	if r.coded != nil {
		return r.coded.version(id)
	}
	i, ok := r.index[id]
	if !ok {
		return 0, false
	}
	return r.entries[i].version, true
}

// apply changes the resident to what was collected. A
// sync that is older than what was applied meanwhile is dropped: what is there
// is newer. It reports false when the resident was evicted or emptied after
// the filler had asked, and the caller starts over: what came may be only what
// changed, and is no scope by itself.
func (f *filler) apply() bool {
	r := f.r
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.dead, r.resets != f.resets:
		return false
	case r.loaded && f.h.snap.before(r.snap):
		return true
	case f.h.fenced() || f.h.subject == 0:
		if r.loaded {
			r.reset()
		}
		return true
	case r.loaded && r.space != f.space:
		r.reset() // in memory is what an earlier policy could compare
		return false
	case r.loaded && r.subject != f.h.subject:
		r.reset() // a new life of the user: everything came
	}
	r.loaded, r.subject, r.snap, r.spaces = true, f.h.subject, f.h.snap, f.spaces
	edits := r.edits
	defer func() {
		if r.edits != edits {
			r.edited = f.h.snap
		}
	}()
	if len(f.hides) > 0 {
		for _, h := range f.hides {
			r.hidden[h] = true
		}
		r.removeHidden()
	}
	for _, id := range f.deleted {
		r.remove(id)
	}
	if f.coded {
		r.putCodes(f)
		return true
	}
	if len(r.entries) == 0 {
		r.entries = f.rows[:0] // puts each row where it is
		r.index = make(map[uuid.UUID]int, len(f.rows))
	}
	for i := range f.rows {
		r.put(f.rows[i])
	}
	f.rows = nil
	return true
}

// release wipes what nobody took over.
func (f *filler) release() {
	wipe(f.rows)
	f.rows = nil
	if f.codes != nil {
		f.codes.zero()
	}
}

// put adds or replaces a row, whose vector is the resident's from now on.
// Callers hold mu for writing.
func (r *resident) put(e entry) {
	e.contributions = r.intern(e.contributions)
	i, known := r.index[e.id]
	if r.hides(e.contributions) || known && r.entries[i].version >= e.version {
		clear(e.vector)
		return
	}
	r.edits++
	r.hashed = r.hashed && e.metadata == nil
	r.lexicon.made = r.lexicon.made && e.text == nil
	r.extra += e.extraBytes()
	if known {
		r.extra -= r.entries[i].extraBytes() + r.lexicon.remove(r.entries[i].wording)
		clear(r.entries[i].vector)
		r.entries[i] = e
		return
	}
	r.index[e.id] = len(r.entries)
	r.entries = append(r.entries, e)
}

// hides reports whether a row with the contributions is hidden.
func (r *resident) hides(cs []memd.Contribution) bool {
	return slices.ContainsFunc(cs, func(c memd.Contribution) bool {
		return r.hidden[c] || r.hidden[memd.Contribution{Subject: c.Subject}]
	})
}

// hash gives the entries the hashes of their metadata, for the first filter
// that asks. Most scopes are never asked, and opening metadata took a tenth of
// the time of loading one.
func (r *resident) hash(k *shred.Keys) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.entries {
		e := &r.entries[i]
		if e.metadata == nil || e.hashes != nil {
			continue
		}
		st := stored{id: e.id, owner: r.subject, month: e.month, contributions: e.contributions, sealed: sealed{metadata: e.metadata}}
		s, err := k.Row(e.month, e.contributions)
		if errors.Is(err, memd.ErrMonthExpired) {
			continue // It is about to leave.
		}
		if err != nil {
			return err
		}
		if e.hashes, err = st.hashMetadata(k, s); err != nil {
			return err
		}
		r.extra += int64(8 * len(e.hashes))
	}
	r.hashed = true
	return nil
}

// remove takes a row out, if it is there. Callers hold mu for writing.
func (r *resident) remove(id uuid.UUID) {
	if r.coded != nil {
		if row, ok := r.coded.find(id); ok {
			r.edits++
			r.coded.remove(row)
		}
		return
	}
	i, ok := r.index[id]
	if !ok {
		return
	}
	r.edits++
	last := len(r.entries) - 1
	r.extra -= r.entries[i].extraBytes() + r.lexicon.remove(r.entries[i].wording)
	clear(r.entries[i].vector)
	if i != last {
		r.entries[i] = r.entries[last]
		r.index[r.entries[i].id] = i
	}
	r.entries[last] = entry{}
	r.entries = r.entries[:last]
	delete(r.index, id)
}

// removeHidden takes out what hidden contributors had a part in.
func (r *resident) removeHidden() {
	r.removeWhere(func(_ int64, _ memd.Month, cs []memd.Contribution) bool {
		for h := range r.hidden {
			if hidesRow(h, cs, r.subject) {
				return true
			}
		}
		return false
	})
}

// removeExpired takes out rows whose time is up.
func (r *resident) removeExpired(now time.Time) {
	at := now.UnixMicro()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeWhere(func(expires int64, _ memd.Month, _ []memd.Contribution) bool { return expires != 0 && expires <= at })
	if r.coded != nil {
		r.coded.expireNext()
	}
}

// removeMonths takes out rows of months whose key is gone. It leaves no mark of it
// for others to follow: all of them hear of the new keys.
func (r *resident) removeMonths(k *shred.Keys) {
	gone := map[memd.Month]bool{}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeWhere(func(_ int64, month memd.Month, _ []memd.Contribution) bool {
		expired, known := gone[month]
		if !known {
			expired = k.Expired(memd.ClassMemory, month)
			gone[month] = expired
		}
		return expired
	})
}

// removeWhere takes rows out by when they expire, their month and who contributed.
// Callers hold mu for writing.
func (r *resident) removeWhere(goes func(expires int64, month memd.Month, cs []memd.Contribution) bool) {
	var ids []uuid.UUID
	if c := r.coded; c != nil {
		for row := range c.n {
			if g := c.group(row); goes(c.expires(row), g.month, g.contributions) {
				ids = append(ids, c.id(row))
			}
		}
	}
	for i := range r.entries {
		if e := &r.entries[i]; goes(e.expires, e.month, e.contributions) {
			ids = append(ids, e.id)
		}
	}
	for _, id := range ids {
		r.remove(id)
	}
}

// hidesRow reports whether a hide covers a row: it names one of the row's
// contributions, all sessions of one of its contributors, or the whole scope.
func hidesRow(h memd.Contribution, cs []memd.Contribution, owner memd.Number) bool {
	if h.Subject == owner && h.Session == 0 {
		return true
	}
	for _, c := range cs {
		if c.Subject == h.Subject && (h.Session == 0 || h.Session == c.Session) {
			return true
		}
	}
	return false
}

func (e *entry) expired(now int64) bool { return e.expires != 0 && e.expires <= now }

func (e *entry) extraBytes() int64 {
	return int64(4*len(e.vector) + len(e.text) + len(e.metadata) + 8*len(e.hashes))
}

// bytesOf is about what a row will take in memory.
func (f *filler) bytesOf(m *fetched) int64 {
	if f.coded {
		return int64(codedBytes(f.dim))
	}
	return bytesOf(m, f.dim)
}

// bytesOf is about what a row will take in memory when it is resident.
func bytesOf(m *fetched, dim int) int64 {
	return int64(4*dim + entryBytes + len(m.text) + len(m.metadata))
}

// intern returns the scope's one copy of a list of contributions. Nearly all
// rows of a conversation have the same.
func (r *resident) intern(cs []memd.Contribution) []memd.Contribution {
	var room [4 * 16]byte
	key := room[:0]
	for _, c := range cs {
		key = binary.BigEndian.AppendUint64(key, uint64(c.Subject))
		key = binary.BigEndian.AppendUint64(key, uint64(c.Session))
	}
	if have, ok := r.sets[string(key)]; ok {
		return have
	}
	r.sets[string(key)] = cs
	r.extra += int64(contributionBytes * len(cs))
	return cs
}
