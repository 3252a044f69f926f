package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// distinctive are words of the conversations, of what was noted and of files
// that no program would write.
var distinctive = []string{
	"asthma", "Tannery", "salbutamol", "Okafor", "ramipril", "malaria tablets", "Gothenburg", "ski accident", "Lindgren",
	"spirometry", "physiotherapist", "cat dander", "counter_notice", "home_address", "care-plan", "pharmacy-note", "sunscreen",
	envPassword, "BOOKINGS_DB",
}

// needles are what must be nowhere in clear: those words, who said them, and
// where.
func (d *demo) needles() []string {
	all := append([]string(nil), distinctive...)
	for _, c := range []*customer{d.acme, d.globex} {
		for _, t := range c.talks {
			all = append(all, t.Session)
		}
		all = append(all, c.users()...)
	}
	return all
}

// search finds needles in one pass: a needle is compared where its first four
// bytes are.
type search struct {
	maybe [1 << 16]bool // by the first two bytes
	heads map[uint32][][]byte
}

// newSearch searches for needles as they are, and as hexadecimal digits, which
// binary columns are in a dump.
func newSearch(needles []string) *search {
	s := &search{heads: map[uint32][][]byte{}}
	for _, n := range needles {
		for _, form := range [][]byte{[]byte(n), []byte(hex.EncodeToString([]byte(n)))} {
			head := binary.LittleEndian.Uint32(form)
			s.heads[head] = append(s.heads[head], form)
			s.maybe[binary.LittleEndian.Uint16(form)] = true
		}
	}
	return s
}

func (s *search) count(data []byte) (n int) {
	for i := 0; i+4 <= len(data); i++ {
		if !s.maybe[binary.LittleEndian.Uint16(data[i:])] {
			continue
		}
		for _, form := range s.heads[binary.LittleEndian.Uint32(data[i:])] {
			if bytes.HasPrefix(data[i:], form) {
				n++
			}
		}
	}
	return n
}

// checkNothingInClear searches every byte that memd has on the disk, when all is
// done: the cluster's data and write-ahead log, its log, memd's log, the ledger,
// the KMS emulator's file, the receipts, and the dump.
func (d *demo) checkNothingInClear(context.Context) error {
	d.section("On the disk")
	needles := d.needles()
	s, control := newSearch(needles), newSearch([]string{d.acme.display})
	var files, found, controls int
	var size int64
	for _, root := range []string{d.c.Dir, d.dev.Cluster.DataDir()} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the server removes files as it goes
			}
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path) //nolint:gosec // The demo's own folder.
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			files++
			size += int64(len(data))
			found += s.count(data)
			if control.count(data) > 0 {
				controls++
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("searching the disk: %w", err)
		}
	}
	d.check(found == 0 && controls > 0,
		"Nothing that anybody said, noted or filed is on the disk in clear, nor who it was",
		"%d strings in %d files of %d MB, write-ahead log, logs, ledger, receipts and dump among them: %d; a tenant's display name, which is in clear: in %d",
		len(needles), files, size>>20, found, controls)
	return nil
}
