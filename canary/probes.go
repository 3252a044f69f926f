package canary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"forgettable.dev/memd"
	"forgettable.dev/memd/shred"
)

// Bounds of what is drawn. Words of every row are candidates as long as there is
// room, so that a copy of any row is found and not only one of the most telling.
const (
	wordsPerRow   = 8
	maxCandidates = 8192
	maxUnique     = 1024
	maxShared     = 128
	maxVectors    = 16
	maxNonces     = 8192
	// maxElsewhere is in how many rows of others a word or vector may be found
	// and still be a probe. What is in more is everybody's.
	maxElsewhere = 8
)

// nonceBytes is the part of a sealed value that is random and in clear.
const nonceBytes = 12

// probe is a word that the target said, as a keyed hash.
type probe struct {
	Hash   hash  `json:"h"`
	Strong bool  `json:"s,omitempty"`
	Before int64 `json:"b"` // in how many rows that must go it was found
}

// drawn is what is remembered of what goes, sealed under the job's leaf.
type drawn struct {
	Unique        []probe     `json:"unique"`
	Filter        []byte      `json:"filter"` // of the words of Unique and Shared
	Shared        []probe     `json:"shared"`
	Vectors       [][]float32 `json:"vectors"`
	SharedVectors [][]float32 `json:"shared_vectors"`
	// Partial: the search for others who say the same did not see everything.
	Partial bool   `json:"partial"`
	Nonces  []byte `json:"nonces"`
	Epoch   int64  `json:"epoch"`
	// Identifiers are the ids of users and sessions, to be looked for in logs.
	Identifiers []string `json:"identifiers"`
	// Unlooked counts the ids that are not: too short, or too many.
	Unlooked int64 `json:"unlooked,omitempty"`
	// Neighbours are others whose keys could be derived.
	Neighbours []memd.Contribution `json:"neighbours"`
	At         time.Time           `json:"at"`
}

// nothing reports that nothing was drawn that could be looked for in rows.
func (d *drawn) nothing() bool {
	return len(d.Unique)+len(d.Shared)+len(d.Vectors)+len(d.SharedVectors)+len(d.Nonces) == 0
}

// fieldProbes names the value among those of a job.
const fieldProbes = "probes"

// seal seals what was drawn. Nil when the job's leaf is gone already.
func (v *Verifier) seal(ctx context.Context, e *exam, d *drawn) ([]byte, error) {
	plain, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encoding probes: %w", err)
	}
	defer clear(plain)
	var sealed []byte
	err = v.c.Keys.Do(ctx, e.Tenant, 0, func(k *shred.Keys) error {
		s, err := k.Job(e.Job)
		if err == nil {
			sealed, err = s.Seal(plain, shred.AADJob(e.Tenant, e.Job, fieldProbes))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sealing probes: %w", err)
	}
	return sealed, nil
}

// unseal opens what was drawn. It returns nil when there is nothing, or when it
// cannot be opened any more: that is the end of every job.
func (v *Verifier) unseal(ctx context.Context, e *exam, sealed []byte) (*drawn, error) {
	if len(sealed) == 0 || !e.Job.Valid() {
		return nil, nil
	}
	var d drawn
	err := v.c.Keys.Do(ctx, e.Tenant, 0, func(k *shred.Keys) error {
		s, err := k.Job(e.Job)
		if err != nil {
			return err
		}
		plain, err := s.Open(sealed, shred.AADJob(e.Tenant, e.Job, fieldProbes))
		if err != nil {
			return err
		}
		defer clear(plain)
		if err := json.Unmarshal(plain, &d); err != nil {
			return fmt.Errorf("decoding probes: %w", memd.ErrCorrupt)
		}
		return nil
	})
	if errors.Is(err, memd.ErrShredded) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening probes: %w", err)
	}
	return &d, nil
}

// wordKey is the key of the job's hashes, made from its leaf.
func (v *Verifier) wordKey(ctx context.Context, e *exam) (key [32]byte, err error) {
	err = v.c.Keys.Do(ctx, e.Tenant, 0, func(k *shred.Keys) error {
		s, err := k.Job(e.Job)
		if err != nil {
			return err
		}
		for i := range 2 {
			half := s.Digest([]byte("canary words"), []byte{byte(i)})
			copy(key[16*i:], half[:])
		}
		return nil
	})
	return key, err
}

// candidate is a word or vector that may become a probe.
type candidate struct {
	probe
	text      []byte // the word, until it is settled
	unit      []float32
	elsewhere int64
}

// candidates collects from what must go.
type candidates struct {
	key     *[32]byte
	words   []candidate
	index   wordIndex
	vectors []candidate
	nonces  []byte
	missed  int64 // nonces that there was no room for
}

func newCandidates(key *[32]byte) *candidates {
	return &candidates{key: key, index: newWordIndex(key)}
}

// take offers what a row says.
func (c *candidates) take(r *row, o *opened) {
	c.note(r)
	if len(c.words) == maxCandidates && len(c.vectors) == maxVectors {
		return
	}
	top := best{limit: wordsPerRow}
	for _, text := range o.said {
		eachWord(text, top.offer)
	}
	for _, w := range top.words {
		h := hashWord(c.key, w.text)
		if _, ok := c.index.at[h]; ok || len(c.words) == maxCandidates {
			continue
		}
		c.index.add(h, w.text)
		c.words = append(c.words, candidate{probe: probe{Hash: h, Strong: w.strong()}, text: w.text})
	}
	known := slices.ContainsFunc(c.vectors, func(v candidate) bool { return alike(v.unit, o.unit) })
	if o.unit != nil && len(c.vectors) < maxVectors && !known {
		c.vectors = append(c.vectors, candidate{unit: slices.Clone(o.unit)})
	}
}

// note remembers the nonces of a row's sealed values.
func (c *candidates) note(r *row) {
	for _, sealed := range r.sealed {
		switch {
		case len(sealed) < nonceBytes:
		case len(c.nonces) < maxNonces*nonceBytes:
			c.nonces = append(c.nonces, sealed[:nonceBytes]...)
		default:
			c.missed++
		}
	}
}

// settle sorts the candidates by where they were found: in rows that must go
// alone, or in a few of others too.
func (c *candidates) settle(d *drawn) {
	// The strong ones first: the rest is cut off when there are too many.
	slices.SortStableFunc(c.words, func(a, b candidate) int {
		switch {
		case a.Strong == b.Strong:
			return 0
		case a.Strong:
			return -1
		}
		return 1
	})
	var f filter
	for _, w := range c.words {
		switch {
		case w.Before == 0: // The look that is to miss later does not even hit now.
		case w.elsewhere == 0 && len(d.Unique) < maxUnique:
			d.Unique = append(d.Unique, w.probe)
			f.add(c.key, w.text)
		case w.elsewhere > 0 && w.elsewhere <= maxElsewhere && len(d.Shared) < maxShared:
			d.Shared = append(d.Shared, w.probe)
			f.add(c.key, w.text)
		}
		clear(w.text)
	}
	d.Filter = f[:]
	for _, w := range c.vectors {
		switch {
		case w.Before == 0:
		case w.elsewhere == 0:
			d.Vectors = append(d.Vectors, w.unit)
		case w.elsewhere <= maxElsewhere:
			d.SharedVectors = append(d.SharedVectors, w.unit)
		}
	}
	d.Nonces = c.nonces
}
