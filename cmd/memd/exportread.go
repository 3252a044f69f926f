package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"

	"filippo.io/age"

	"forgettable.dev/memd/export"
)

// exportFetchCmd is for the customer, who has a link and nothing else.
type exportFetchCmd struct {
	Link   string `arg:"" help:"The link; - reads it from the standard input, where nobody else on the machine sees it."`
	Output string `short:"o" required:"" placeholder:"FILE" help:"Where to write the archive. What is there of it already is not fetched again."`
}

// partial is what a file is called that is not whole.
const partial = ".partial"

// Run downloads the archive. The file appears when it is complete.
func (c *exportFetchCmd) Run(ctx context.Context, con *console) error {
	if c.Link == "-" {
		b, err := io.ReadAll(io.LimitReader(con.Stdin, 4096))
		if err != nil {
			return fmt.Errorf("reading the link: %w", err)
		}
		c.Link = strings.TrimSpace(string(b))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Link, nil)
	if err != nil {
		return usagef("the link is no address")
	}
	file, err := os.OpenFile(c.Output+partial, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("opening the file: %w", err)
	}
	defer func() { _ = file.Close() }()
	have, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("looking at what there is of it: %w", err)
	}
	if have > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
		tag, err := os.ReadFile(c.Output + partial + ".etag")
		if err != nil {
			return fmt.Errorf("what there is of it cannot be gone on with; delete %s: %w", c.Output+partial, err)
		}
		req.Header.Set("If-Range", string(tag))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return errors.New("the server could not be reached") // Its text would repeat the link.
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
		if err := errors.Join(file.Truncate(0), os.WriteFile(c.Output+partial+".etag", []byte(resp.Header.Get("ETag")), 0o600)); err != nil {
			return fmt.Errorf("beginning the file: %w", err)
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("beginning the file: %w", err)
		}
	case http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable: // The latter: it is whole.
	case http.StatusNotFound:
		return errors.New("no archive is there: the link has expired, was revoked, or the archive is made anew or gone")
	default:
		return fmt.Errorf("the server answers %s", resp.Status)
	}
	if resp.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		if _, err := io.Copy(file, resp.Body); err != nil {
			return errors.New("the download broke off; fetch it again to go on")
		}
	}
	if err := errors.Join(file.Sync(), file.Close(), os.Rename(c.Output+partial, c.Output)); err != nil {
		return fmt.Errorf("completing the file: %w", err)
	}
	_ = os.Remove(c.Output + partial + ".etag")
	con.notef("%s is fetched.", c.Output)
	return nil
}

// identityFlags are the customer's keys.
type identityFlags struct {
	Identity []string `required:"" short:"i" placeholder:"FILE" help:"File with age identities (AGE-SECRET-KEY-…), as age-keygen makes it. May be repeated."`
	Manifest string   `placeholder:"SHA256" help:"What memd export status says of the manifest. Without it an archive that somebody else made for the same key cannot be told."`
}

func (f *identityFlags) read() (all []age.Identity, err error) {
	for _, name := range f.Identity {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("opening the identities: %w", err)
		}
		ids, err := age.ParseIdentities(file)
		_ = file.Close()
		if err != nil {
			return nil, usagef("%s holds no age identities", name)
		}
		all = append(all, ids...)
	}
	return all, nil
}

// errNotWhole: what is wrong was printed.
var errNotWhole = errors.New("not as memd made it")

// check reads an archive and prints what it shows.
func (f *identityFlags) check(con *console, name string, sink export.Sink) error {
	ids, err := f.read()
	if err != nil {
		return err
	}
	in := con.Stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("opening the archive: %w", err)
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	r, err := export.Read(in, sink, ids...)
	if err != nil {
		return err
	}
	if f.Manifest != "" && !strings.EqualFold(f.Manifest, r.ManifestSHA256) {
		r.Problems = append(r.Problems, "manifest.age is another than that with SHA-256 "+f.Manifest)
	}
	for _, p := range r.Problems {
		if _, err := fmt.Fprintf(con.Stdout, "%s: %s\n", name, p); err != nil {
			return err
		}
	}
	if len(r.Problems) > 0 {
		return errNotWhole
	}
	t := r.Manifest.Totals
	_, err = fmt.Fprintf(con.Stdout, "%s: whole: %s of %s, made %s: %d subjects, %d sessions, %d events, %d state, %d artifacts, %d memories; manifest %s\n",
		name, r.Manifest.Kind, r.Manifest.Tenant, r.Manifest.MadeAt.Format("2006-01-02"), t.Subjects, t.Sessions, t.Events, t.State, t.Artifacts, t.Memories,
		r.ManifestSHA256)
	return err
}

type exportVerifyCmd struct {
	File []string `arg:"" help:"Archives; - is the standard input."`
	identityFlags
}

// Run verifies every archive, also behind one that is not whole.
func (c *exportVerifyCmd) Run(_ context.Context, con *console) error {
	var all error
	for _, name := range c.File {
		if err := c.check(con, name, nil); err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", name, err))
		}
	}
	return all
}

type exportOpenCmd struct {
	File   string `arg:"" help:"The archive; - is the standard input."`
	Output string `short:"o" required:"" placeholder:"DIR" help:"A new folder for its files, for you alone. They are as memd made them only if this succeeds."`
	identityFlags
}

// Run writes the files.
func (c *exportOpenCmd) Run(_ context.Context, con *console) error {
	if err := os.Mkdir(c.Output, 0o700); err != nil {
		return fmt.Errorf("making the folder: %w", err)
	}
	root, err := os.OpenRoot(c.Output)
	if err != nil {
		return fmt.Errorf("opening the folder: %w", err)
	}
	defer func() { _ = root.Close() }()
	return c.check(con, c.File, func(name string) (io.WriteCloser, error) {
		if dir := path.Dir(name); dir != "." {
			if err := root.MkdirAll(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, fmt.Errorf("making a folder: %w", err)
			}
		}
		return root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	})
}
