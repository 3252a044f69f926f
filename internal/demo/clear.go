package demo

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// distinctive are words of the conversations that no program would write.
var distinctive = []string{"asthma", "Tannery", "salbutamol", "Okafor", "ramipril", "malaria tablets", "Gothenburg", "ski accident", "Lindgren"}

// checkNothingInClear searches every byte that memd has on the disk: the
// cluster's data and write-ahead log, its log, memd's log, the ledger, the KMS
// emulator's file and the dump, where binary columns are in hexadecimal.
func (d *demo) checkNothingInClear() error {
	var needles [][]byte
	add := func(s string) { needles = append(needles, []byte(s), []byte(hex.EncodeToString([]byte(s)))) }
	for _, word := range distinctive {
		add(word)
	}
	for _, c := range []*customer{d.acme, d.globex} {
		for _, t := range c.talks {
			add(t.Session)
		}
		for _, u := range c.users() {
			add(u)
		}
	}
	control := []byte(d.acme.display)
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
			for _, n := range needles {
				if bytes.Contains(data, n) {
					found++
				}
			}
			if bytes.Contains(data, control) {
				controls++
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("searching the disk: %w", err)
		}
	}
	d.check(found == 0 && controls > 0,
		"Nothing that anybody said is on the disk in clear, nor who said it",
		"%d strings in %d files of %d MB, write-ahead log, logs, ledger and dump among them: %d; a tenant's display name, which is in clear: in %d",
		len(needles)/2, files, size>>20, found, controls)
	return nil
}
