package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"path/filepath"
	"time"

	"forgettable.dev/memd"
	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

// artifactCmd keeps files of sessions and users.
type artifactCmd struct {
	Save     artifactSaveCmd     `cmd:"" help:"Save a file as the next version of an artifact."`
	Load     artifactLoadCmd     `cmd:"" help:"Write a version of an artifact, or a part of it, to a file."`
	List     artifactListCmd     `cmd:"" help:"List the artifacts of a session, and of its user."`
	Versions artifactVersionsCmd `cmd:"" help:"List the versions of an artifact."`
	Delete   artifactDeleteCmd   `cmd:"" help:"Delete a version of an artifact, or all of them."`
}

// artifactFlags say whose artifacts are meant.
type artifactFlags struct {
	appFlag
	User    string `required:"" placeholder:"ID" help:"The user."`
	Session string `placeholder:"ID" help:"The session. Needed for names that do not begin with \"user:\"."`
}

func (f *artifactFlags) owner() *memdv1.ArtifactOwner {
	return &memdv1.ArtifactOwner{App: f.App, UserId: f.User, SessionId: f.Session}
}

const (
	// artifactMessage is how many bytes a message of a stream carries.
	artifactMessage = 256 << 10
	// artifactTimeout replaces the default of --timeout for streams.
	artifactTimeout = time.Hour
)

// patient gives a stream the time of a stream, unless --timeout says otherwise.
func (f *serverFlags) patient() {
	if f.Timeout == time.Minute {
		f.Timeout = artifactTimeout
	}
}

type artifactSaveCmd struct {
	File string `arg:"" help:"The file, or - for the standard input."`
	artifactFlags
	Name     string            `help:"Name of the artifact; that of the file if left out. With \"user:\" in front it belongs to the user."`
	Mime     string            `placeholder:"TYPE" help:"Media type; guessed from the name if left out."`
	Metadata map[string]string `placeholder:"KEY=VALUE" mapsep:"none" help:"Metadata. May be repeated."`
	Time     time.Time         `placeholder:"TIME" help:"When the artifact came about (RFC 3339). Needed for a user who was erased before."`
	outputFlags
	serverFlags
}

// Run streams the file.
func (c *artifactSaveCmd) Run(ctx context.Context, con *console) error {
	if c.Name == "" {
		if c.File == "-" {
			return usagef("what is read from the standard input needs a --name")
		}
		c.Name = filepath.Base(c.File)
	}
	if c.Mime == "" {
		c.Mime = mime.TypeByExtension(filepath.Ext(c.Name))
	}
	in := con.Stdin
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return fmt.Errorf("opening the file: %w", err)
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	c.patient()
	server, err := c.connect()
	if err != nil {
		return err
	}
	header := &memdv1.SaveArtifactHeader{
		Owner: c.owner(), Name: c.Name, MimeType: c.Mime, Metadata: c.Metadata, SourceTime: timestamp(c.Time),
	}
	// Leaving early cancels the stream: the server takes what ended in good order
	// for the whole.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := saveArtifact(ctx, server.Artifacts, header, in)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	return artifactTable(con, resp.GetVersion())
}

// saveArtifact sends what in has. An input that fails is the caller's to give
// the stream up by its context.
func saveArtifact(ctx context.Context, client memdv1connect.ArtifactServiceClient, header *memdv1.SaveArtifactHeader, in io.Reader) (*memdv1.SaveArtifactResponse, error) {
	stream, err := client.SaveArtifact(ctx)
	if err != nil {
		return nil, err
	}
	err = stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Header{Header: header}})
	buffer := make([]byte, artifactMessage)
	for err == nil {
		n, end := io.ReadFull(in, buffer)
		if end != nil && !errors.Is(end, io.EOF) && !errors.Is(end, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("reading the file: %w", end)
		}
		if n > 0 {
			err = stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Data{Data: buffer[:n]}})
		}
		if end != nil {
			break
		}
	}
	// When the server has ended the stream, its answer says why.
	return stream.CloseAndReceive()
}

type artifactLoadCmd struct {
	Name string `arg:"" help:"Name of the artifact."`
	artifactFlags
	Output string `short:"o" default:"-" placeholder:"FILE" help:"Where to write it; - is the standard output."`
	Number int64  `default:"-1" help:"Number of the version; -1 is the latest."`
	Offset int64  `help:"The first byte wanted."`
	Length int64  `help:"How many bytes are wanted; 0 means all."`
	serverFlags
}

// Run writes the bytes. A file appears when it is complete.
func (c *artifactLoadCmd) Run(ctx context.Context, con *console) error {
	c.patient()
	server, err := c.connect()
	if err != nil {
		return err
	}
	req := &memdv1.LoadArtifactRequest{Owner: c.owner(), Name: c.Name, Version: artifactVersion(c.Number), Offset: c.Offset, Length: c.Length}
	if c.Output == "-" {
		return loadArtifact(ctx, server.Artifacts, req, con.Stdout)
	}
	file, err := os.CreateTemp(filepath.Dir(c.Output), ".memd-*")
	if err != nil {
		return fmt.Errorf("making the file: %w", err)
	}
	defer func() { _ = os.Remove(file.Name()) }() // gone already when all went well
	err = errors.Join(loadArtifact(ctx, server.Artifacts, req, file), file.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(file.Name(), c.Output); err != nil {
		return fmt.Errorf("naming the file: %w", err)
	}
	return nil
}

func loadArtifact(ctx context.Context, client memdv1connect.ArtifactServiceClient, req *memdv1.LoadArtifactRequest, out io.Writer) error {
	stream, err := client.LoadArtifact(ctx, req)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	var want, got int64
	for {
		m, err := stream.Receive()
		switch {
		case errors.Is(err, io.EOF) && got == want:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%d of %d bytes came: %w", got, want, io.ErrUnexpectedEOF)
		case err != nil:
			return err
		}
		if h := m.GetHeader(); h != nil {
			want = h.GetLength()
		}
		n, err := out.Write(m.GetData())
		if err != nil {
			return fmt.Errorf("writing the artifact: %w", err)
		}
		got += int64(n)
	}
}

type artifactListCmd struct {
	artifactFlags
	outputFlags
	serverFlags
}

// Run lists all names.
func (c *artifactListCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	all := &memdv1.ListArtifactsResponse{}
	for first := true; first || all.NextPageToken != ""; first = false {
		resp, err := server.Artifacts.ListArtifacts(ctx, &memdv1.ListArtifactsRequest{
			Owner: c.owner(), PageSize: memd.MaxPageSize, PageToken: all.NextPageToken,
		})
		if err != nil {
			return err
		}
		all.Artifacts = append(all.Artifacts, resp.GetArtifacts()...)
		all.NextPageToken, all.Fenced = resp.GetNextPageToken(), resp.GetFenced()
	}
	switch {
	case c.JSON:
		return writeMessage(con.Stdout, all)
	case all.Fenced:
		con.notef("The user is being erased: there is nothing.")
		return nil
	case len(all.Artifacts) == 0:
		con.notef("No artifacts.")
		return nil
	}
	t := newTable(con.Stdout, "NAME", "LATEST", "CREATED")
	for _, a := range all.Artifacts {
		t.row(a.GetName(), fmt.Sprint(a.GetLatestVersion()), formatTime(a.GetCreatedAt()))
	}
	return t.close()
}

type artifactVersionsCmd struct {
	Name string `arg:"" help:"Name of the artifact."`
	artifactFlags
	outputFlags
	serverFlags
}

// Run lists all versions.
func (c *artifactVersionsCmd) Run(ctx context.Context, con *console) error {
	server, err := c.connect()
	if err != nil {
		return err
	}
	all := &memdv1.ListArtifactVersionsResponse{}
	for first := true; first || all.NextPageToken != ""; first = false {
		resp, err := server.Artifacts.ListArtifactVersions(ctx, &memdv1.ListArtifactVersionsRequest{
			Owner: c.owner(), Name: c.Name, PageSize: memd.MaxPageSize, PageToken: all.NextPageToken,
		})
		if err != nil {
			return err
		}
		all.Versions = append(all.Versions, resp.GetVersions()...)
		all.NextPageToken = resp.GetNextPageToken()
	}
	switch {
	case c.JSON:
		return writeMessage(con.Stdout, all)
	case len(all.Versions) == 0:
		con.notef("No versions.")
		return nil
	}
	return artifactTable(con, all.Versions...)
}

type artifactDeleteCmd struct {
	Name string `arg:"" help:"Name of the artifact."`
	artifactFlags
	Number int64 `default:"-1" help:"Number of the version that is to go."`
	All    bool  `help:"All versions are to go, and the name."`
	outputFlags
	serverFlags
}

// Run deletes what was named.
func (c *artifactDeleteCmd) Run(ctx context.Context, con *console) error {
	req := &memdv1.DeleteArtifactRequest{Owner: c.owner(), Name: c.Name}
	switch {
	case c.All && c.Number >= 0:
		return usagef("--number and --all rule each other out")
	case c.All:
		req.What = &memdv1.DeleteArtifactRequest_AllVersions{AllVersions: true}
	case c.Number >= 0:
		req.What = &memdv1.DeleteArtifactRequest_Version{Version: c.Number}
	default:
		return usagef("what is to go? say --number=N or --all")
	}
	server, err := c.connect()
	if err != nil {
		return err
	}
	resp, err := server.Artifacts.DeleteArtifact(ctx, req)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeMessage(con.Stdout, resp)
	}
	con.notef("%s deleted.", plural(resp.GetVersionsDeleted(), "version", "versions"))
	return nil
}

func artifactTable(con *console, versions ...*memdv1.ArtifactVersion) error {
	t := newTable(con.Stdout, "NAME", "VERSION", "BYTES", "TYPE", "CREATED")
	for _, v := range versions {
		t.row(v.GetName(), fmt.Sprint(v.GetVersion()), fmt.Sprint(v.GetSize()), orDash(v.GetMimeType()), formatTime(v.GetCreatedAt()))
	}
	return t.close()
}

func artifactVersion(v int64) *int64 {
	if v < 0 {
		return nil
	}
	return &v
}
