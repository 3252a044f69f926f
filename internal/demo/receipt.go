package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/internal/dev"
)

// checkReceipt gives the receipts of the erasure to the command line, as whoever
// was sent them would: files, and the public key.
func (d *demo) checkReceipt(ctx context.Context) error {
	d.section("The receipt")
	keys, files, err := d.fetchReceipts(ctx)
	if err != nil {
		return err
	}
	said, err := d.verify(ctx, keys, files)
	d.check(err == nil && len(files) == 2 && strings.Contains(said, "verified: 2 receipts"),
		"Signed, in the log, and nothing missing there: verified offline, with the public key alone",
		"memd receipt verify: %s", told(said, err))

	changed := slices.Clone(files)
	if n := len(files); n > 0 {
		if changed[n-1], err = changeOneByte(files[n-1]); err != nil {
			return err
		}
	}
	said, err = d.verify(ctx, keys, changed)
	d.check(err != nil && len(files) > 0, "With one byte changed, one that says what the sweep found, it does not verify",
		"memd receipt verify: %s", told(said, err))

	var hers, other error = errNoReceipt, nil
	if len(files) > 0 {
		last := files[len(files)-1]
		hers, other = d.prove(ctx, keys, last, mara), d.prove(ctx, keys, last, jonas)
	}
	d.check(hers == nil && other != nil, "Whoever has the salt can show that it is about Mara, and cannot show that it is about Jonas",
		"memd receipt prove: Mara: %s; Jonas: %s", told("proved", hers), told("proved", other))

	hits, names := 0, d.needles()
	for _, f := range files {
		data, err := os.ReadFile(f) //nolint:gosec // The demo's own file.
		if err != nil {
			return fmt.Errorf("reading a receipt: %w", err)
		}
		for _, n := range names {
			if bytes.Contains(data, []byte(n)) {
				hits++
			}
		}
		if !bytes.Contains(data, []byte(d.request)) {
			return fmt.Errorf("receipt %s is another request's", filepath.Base(f))
		}
	}
	d.check(len(files) > 0 && hits == 0, "It does not say who she is, nor anything that was said",
		"%d names, ids and words searched for in %d receipts: %d found", len(names), len(files), hits)
	return nil
}

// fetchReceipts writes the receipts and the public keys to files.
func (d *demo) fetchReceipts(ctx context.Context) (keys string, files []string, err error) {
	if d.request == "" {
		d.show("There is none: nobody was forgotten.")
		return "", nil, nil
	}
	public, err := d.c.Command(ctx, "receipt", "public-key", "--database-url="+d.dev.Cluster.URL(dev.Database, "memd_app"))
	if err != nil {
		return "", nil, fmt.Errorf("asking for the public keys: %w", err)
	}
	keys = filepath.Join(d.c.Dir, "public-keys.json")
	if err := os.WriteFile(keys, []byte(public), 0o600); err != nil {
		return "", nil, fmt.Errorf("writing the public keys: %w", err)
	}
	resp, err := d.acme.api.Erasure.GetReceipt(ctx, &memdv1.GetReceiptRequest{RequestId: d.request})
	if err != nil {
		return "", nil, fmt.Errorf("asking for the receipts: %w", err)
	}
	for i, bundle := range resp.GetBundles() {
		file := filepath.Join(d.c.Dir, fmt.Sprintf("receipt-%d.json", i))
		if err := os.WriteFile(file, bundle, 0o600); err != nil {
			return "", nil, fmt.Errorf("writing a receipt: %w", err)
		}
		if d.c.Instead == ForgeReceipt && i == len(resp.GetBundles())-1 {
			if file, err = changeOneByte(file); err != nil {
				return "", nil, err
			}
		}
		files = append(files, file)
	}
	return keys, files, nil
}

// errNoReceipt: there is nothing to prove with.
var errNoReceipt = errors.New("no receipt")

func (d *demo) verify(ctx context.Context, keys string, files []string) (string, error) {
	if len(files) == 0 {
		return "", errNoReceipt
	}
	return d.c.Command(ctx, append([]string{"receipt", "verify", "--public-key=" + keys}, files...)...)
}

func (d *demo) prove(ctx context.Context, keys, file, user string) error {
	_, err := d.c.Command(ctx, "receipt", "prove", "--public-key="+keys, "--salt="+d.salt, "--app="+d.acme.app, "--user="+user, file)
	return err
}

// sweptField is the field of a receipt that says what the second sweep found.
const sweptField = `"rows_found":`

// changeOneByte writes a copy of a receipt with the last digit of that number
// changed, and returns the copy's name. Changing it twice changes nothing.
func changeOneByte(file string) (string, error) {
	data, err := os.ReadFile(file) //nolint:gosec // The demo's own file.
	if err != nil {
		return "", fmt.Errorf("reading a receipt: %w", err)
	}
	at := bytes.Index(data, []byte(sweptField))
	if at < 0 {
		return "", errors.New("a receipt does not say what the sweep found")
	}
	data[at+len(sweptField)] ^= 1
	changed := strings.TrimSuffix(file, ".json") + "-changed.json"
	if err := os.WriteFile(changed, data, 0o600); err != nil {
		return "", fmt.Errorf("writing a receipt: %w", err)
	}
	return changed, nil
}

// told is the last line of what a command said, or why it failed.
func told(said string, err error) string {
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return lines[len(lines)-1]
}
