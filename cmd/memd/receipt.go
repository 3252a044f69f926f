package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"forgettable.dev/memd/receipts"
)

// receiptCmd checks receipts. Verify and Prove need no server, no database and
// no network: a receipt that only its issuer can check proves nothing.
type receiptCmd struct {
	Verify    receiptVerifyCmd    `cmd:"" help:"Check receipts offline, with the public key alone."`
	Prove     receiptProveCmd     `cmd:"" help:"Check whom a receipt is about, with its salt."`
	PublicKey receiptPublicKeyCmd `cmd:"" name:"public-key" help:"Print the public keys that receipts verify with."`
	// Consistency is for who has two checkpoints, and not what lies between.
	Consistency receiptConsistencyCmd `cmd:"" help:"Print the proof that a tenant's log continues what it was before."`
	Export      receiptExportCmd      `cmd:"" help:"Write all receipts of a tenant to a folder, for an auditor."`
	RotateKey   receiptRotateKeyCmd   `cmd:"" name:"rotate-key" help:"Make a new signing key. Receipts of the old one still verify."`
}

// publicKeyFlag names the public keys. They should have come another way than
// the receipts.
type publicKeyFlag struct {
	PublicKey string `required:"" type:"existingfile" placeholder:"FILE" help:"Public keys, as \"memd receipt public-key\" prints them."`
}

func (f *publicKeyFlag) keys() (*receipts.Keys, error) {
	data, err := os.ReadFile(f.PublicKey)
	if err != nil {
		return nil, err
	}
	keys, err := receipts.ParseKeys(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.PublicKey, err)
	}
	return keys, nil
}

type receiptVerifyCmd struct {
	Files       []string `arg:"" optional:"" name:"file" type:"existingfile" help:"Receipts. More than one are checked as a log: nothing missing, nothing reordered."`
	All         string   `type:"existingdir" placeholder:"DIR" help:"Check all receipts (*.json) of a folder as a log."`
	Checkpoint  []string `type:"existingfile" placeholder:"FILE" help:"Checkpoint that was kept, or a receipt that holds one: the log must continue it and be as long."`
	Consistency string   `type:"existingfile" placeholder:"FILE" help:"Proof of \"memd receipt consistency\", for one receipt and one checkpoint without the receipts between them."`
	publicKeyFlag
	outputFlags
}

// receiptLine is what verify says of one receipt.
type receiptLine struct {
	File      string    `json:"file"`
	Index     uint64    `json:"index"`
	Leaf      string    `json:"leaf"`
	Stage     string    `json:"stage"`
	Kind      string    `json:"kind"`
	Tenant    string    `json:"tenant"`
	RequestID string    `json:"request_id"`
	IssuedAt  time.Time `json:"issued_at"`
	// Complete is what the receipt says, not whether it verifies.
	Complete bool `json:"complete"`
	Failed   int  `json:"failed_checks"`
	NotRun   int  `json:"not_run"`
}

// receiptVerdict is the answer with --json.
type receiptVerdict struct {
	Verified bool          `json:"verified"`
	Error    string        `json:"error,omitempty"`
	Origin   string        `json:"origin,omitempty"`
	Size     uint64        `json:"size,omitempty"`
	Root     string        `json:"root,omitempty"`
	Receipts []receiptLine `json:"receipts,omitempty"`
}

// errNotVerified: said already, by the verdict on standard output.
var errNotVerified = errors.New("the receipts do not verify")

// Run verifies. The exit status is 0 when everything holds and 1 when anything
// does not.
func (c *receiptVerifyCmd) Run(_ context.Context, con *console) error {
	if c.All != "" {
		more, err := filepath.Glob(filepath.Join(c.All, "*.json"))
		if err != nil {
			return err
		}
		c.Files = append(c.Files, more...)
	}
	if len(c.Files) == 0 {
		return usagef("no receipts: name files, or a folder with --all that has some")
	}
	if c.Consistency != "" && (len(c.Files) != 1 || len(c.Checkpoint) != 1) {
		return usagef("--consistency is for one receipt and one --checkpoint")
	}
	verdict, err := c.verify()
	verdict.Verified = err == nil
	if c.JSON {
		if err != nil {
			verdict.Error = err.Error()
		}
		out := json.NewEncoder(con.Stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(verdict); err != nil {
			return fmt.Errorf("writing the verdict: %w", err)
		}
		if !verdict.Verified {
			return errNotVerified
		}
		return nil
	}
	if err != nil {
		return err
	}
	t := newTable(con.Stdout, "NUMBER", "STAGE", "KIND", "TENANT", "REQUEST", "ISSUED", "COMPLETE", "FAILED", "NOT RUN")
	for _, r := range verdict.Receipts {
		complete := "no"
		if r.Complete {
			complete = "yes"
		}
		t.row(fmt.Sprint(r.Index), r.Stage, r.Kind, r.Tenant, r.RequestID, r.IssuedAt.Format(time.DateTime+"Z"), complete,
			fmt.Sprint(r.Failed), fmt.Sprint(r.NotRun))
	}
	if err := t.close(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(con.Stdout, "\nverified: %s of log %s, which had %s under root %s\n",
		plural(int64(len(verdict.Receipts)), "receipt", "receipts"), verdict.Origin,
		plural(int64(verdict.Size), "entry", "entries"), verdict.Root)
	return err
}

func (c *receiptVerifyCmd) verify() (receiptVerdict, error) {
	var verdict receiptVerdict
	keys, err := c.keys()
	if err != nil {
		return verdict, err
	}
	var bundles []receipts.Bundle
	for _, file := range c.Files {
		b, err := readBundle(file)
		if err != nil {
			return verdict, err
		}
		if _, err := b.Verify(keys); err != nil {
			return verdict, fmt.Errorf("%s: %w", file, err)
		}
		bundles = append(bundles, b)
		line, err := lineOf(file, b)
		if err != nil {
			return verdict, err
		}
		verdict.Receipts = append(verdict.Receipts, line)
	}
	slices.SortStableFunc(verdict.Receipts, func(a, b receiptLine) int { return int(a.Index) - int(b.Index) })
	var old []receipts.Checkpoint
	for _, file := range c.Checkpoint {
		text, err := readCheckpoint(file)
		if err != nil {
			return verdict, err
		}
		kept, err := receipts.ParseCheckpoint(text, keys)
		if err != nil {
			return verdict, fmt.Errorf("%s: %w", file, err)
		}
		old = append(old, kept)
	}
	var head receipts.Checkpoint
	switch {
	case c.Consistency != "":
		if head, err = bundles[0].Verify(keys); err == nil {
			err = c.consistent(old[0], head)
		}
	case len(bundles) == 1 && c.All == "" && len(old) == 0:
		head, err = bundles[0].Verify(keys)
	default:
		var chain receipts.Chain
		chain, err = receipts.VerifyChain(bundles, keys, old...)
		head = chain.Head
	}
	if err != nil {
		return verdict, err
	}
	verdict.Origin, verdict.Size, verdict.Root = head.Origin, head.Size, head.Root.String()
	return verdict, nil
}

// consistent checks two heads with the proof between them.
func (c *receiptVerifyCmd) consistent(a, b receipts.Checkpoint) error {
	data, err := os.ReadFile(c.Consistency)
	if err != nil {
		return err
	}
	proof, err := receipts.ParseConsistency(bytes.TrimSuffix(data, []byte("\n")))
	if err != nil {
		return fmt.Errorf("%s: %w", c.Consistency, err)
	}
	return proof.Verify(a, b)
}

func lineOf(file string, b receipts.Bundle) (receiptLine, error) {
	leaf, err := b.Entry.Leaf()
	if err != nil {
		return receiptLine{}, err
	}
	r := b.Entry.Receipt
	line := receiptLine{
		File: file, Index: b.Entry.Index, Leaf: leaf.String(), Stage: string(r.Stage), Kind: string(r.Kind), Tenant: r.Tenant,
		RequestID: r.RequestID.String(), IssuedAt: r.Times.Issued, Complete: r.Complete(), NotRun: len(r.NotRun),
	}
	for _, check := range r.Checks {
		if check.Result == receipts.Fail {
			line.Failed++
		}
	}
	return line, nil
}

// readBundle reads a receipt. Its bytes are exact but for the newline at a
// file's end.
func readBundle(file string) (receipts.Bundle, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return receipts.Bundle{}, err
	}
	b, err := receipts.ParseBundle(bytes.TrimSuffix(data, []byte("\n")))
	if err != nil {
		return receipts.Bundle{}, fmt.Errorf("%s: %w", file, err)
	}
	return b, nil
}

// readCheckpoint reads a checkpoint as text, or that of a receipt.
func readCheckpoint(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(string(data), "{") {
		return string(data), nil
	}
	b, err := readBundle(file)
	return b.Checkpoint, err
}

type receiptProveCmd struct {
	File    string `arg:"" type:"existingfile" help:"The receipt."`
	Salt    string `required:"" placeholder:"HEX" help:"The salt that the requester was given. Whoever has it can test names against the receipt; the variable keeps it out of the shell's history."`
	App     string `help:"The app. Empty for a tenant."`
	User    string `help:"The user id, exactly as it was stored. Empty for a tenant."`
	Session string `help:"The session id. Empty unless the erasure was one of a session."`
	publicKeyFlag
}

// Run verifies the receipt and then the commitment in it.
func (c *receiptProveCmd) Run(_ context.Context, con *console) error {
	salt, err := receipts.ParseSalt(c.Salt)
	if err != nil {
		return usagef("--salt %s", strings.TrimPrefix(err.Error(), "salt "))
	}
	keys, err := c.keys()
	if err != nil {
		return err
	}
	b, err := readBundle(c.File)
	if err != nil {
		return err
	}
	if _, err := b.Verify(keys); err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	if !b.Entry.Receipt.Proves(salt, c.App, c.User, c.Session) {
		return errors.New("the receipt is not about them, or the salt is another receipt's")
	}
	_, err = fmt.Fprintf(con.Stdout, "proved: the receipt of request %s is about them\n", b.Entry.Receipt.RequestID)
	return err
}
