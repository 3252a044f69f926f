// Command memd is the memory service and its command line: it runs the service
// (dev, serve, worker, migrate) and speaks to one that runs (import, add,
// search, forget and so on).
//
// Every flag --some-flag can be set by the environment variable MEMD_SOME_FLAG;
// the flag wins. The exit status is 0 when all went well, 1 when something
// failed, and 2 when the command line was wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// cli is the command line: a field is a command, and a command is a struct with
// a method Run, which may take the context and the console.
type cli struct {
	Dev         devCmd         `cmd:"" group:"service" help:"Run everything in one process, on a folder, for development."`
	Serve       serveCmd       `cmd:"" group:"service" help:"Answer the API."`
	Worker      workerCmd      `cmd:"" group:"service" help:"Carry out erasures and set up tenants."`
	Migrate     migrateCmd     `cmd:"" group:"service" help:"Bring the database to this binary's schema."`
	FirstKey    firstKeyCmd    `cmd:"" name:"first-key" group:"service" help:"Make the first API key of a new installation: the operator's."`
	KMSEmulator kmsEmulatorCmd `cmd:"" name:"kms-emulator" group:"service" help:"Serve an emulator of Cloud KMS, for development and tests."`

	Backup  backupCmd  `cmd:"" group:"backup" help:"Dump the database, with a manifest."`
	Restore restoreCmd `cmd:"" group:"backup" help:"Bring a database that was rolled back up to its ledger, so that it serves again."`
	Ledger  ledgerCmd  `cmd:"" group:"backup" help:"Look after what is kept outside the database."`
	Shred   shredCmd   `cmd:"" group:"backup" help:"Take back the destruction of the wrong key."`

	Demo  demoCmd  `cmd:"" group:"demo" help:"Show on this machine that forgetting works."`
	Bench benchCmd `cmd:"" group:"demo" help:"Measure memd on this machine, beside its peers."`

	Import importCmd `cmd:"" group:"memories" help:"Store conversations from a file of JSON lines."`
	Add    addCmd    `cmd:"" group:"memories" help:"Store one memory."`
	Search searchCmd `cmd:"" group:"memories" help:"Find the memories of a user that are nearest to a text."`
	List   listCmd   `cmd:"" group:"memories" help:"List the memories of a user."`
	Get    getCmd    `cmd:"" group:"memories" help:"Show one memory."`
	Delete deleteCmd `cmd:"" group:"memories" help:"Delete one memory."`

	Session  sessionCmd  `cmd:"" group:"memories" help:"Keep conversations: create, get, list, append to and delete sessions."`
	Artifact artifactCmd `cmd:"" group:"memories" help:"Save, load, list and delete artifacts: files of sessions and users."`

	Forget  forgetCmd  `cmd:"" group:"erasure" help:"Erase a user, or one of their conversations, from everything, backups included."`
	Erasure erasureCmd `cmd:"" group:"erasure" help:"Look at erasures, watch them, count before, verify again."`
	Hold    holdCmd    `cmd:"" group:"erasure" help:"Set and release legal holds."`
	Canary  canaryCmd  `cmd:"" group:"erasure" help:"Prove against a running service that forgetting works, with a user made for it."`
	Receipt receiptCmd `cmd:"" group:"erasure" help:"Verify receipts of erasures, and export them with their public keys."`

	Compact   compactCmd   `cmd:"" group:"admin" help:"Take the bytes of deleted rows out of the database's files: plan, run, watch, pause."`
	Tenant    tenantCmd    `cmd:"" group:"admin" help:"Create and show tenants, and set their policies."`
	Retention retentionCmd `cmd:"" group:"admin" help:"See and run what tenants' policies let expire, month by month."`

	Export exportCmd `cmd:"" group:"admin" help:"Hand a tenant, or one user, all that memd keeps of them; verify and open what was handed out."`
	Target targetCmd `cmd:"" group:"admin" help:"Register, list, test and remove purge targets: stores outside memd that erasures must reach."`
	APIKey apikeyCmd `cmd:"" name:"apikey" group:"admin" help:"Create, list and revoke API keys."`

	Version versionFlag `help:"Print the version and leave."`
}

// commandGroups titles the groups of cli, in the order of the help.
var commandGroups = []kong.Group{
	{Key: "service", Title: "Running the service:"},
	{Key: "backup", Title: "Backups and the ledger:"},
	{Key: "demo", Title: "Seeing it work:"},
	{Key: "memories", Title: "Memories:"},
	{Key: "erasure", Title: "Forgetting:"},
	{Key: "admin", Title: "Administration:"},
	{Key: "server", Title: "Server to speak to:"},
	{Key: "embedder", Title: "The embedder \"openai\", for tenants whose policy names it:"},
	{Key: "filter", Title: "Only memories that:"},
}

const description = "memd is a memory service for AI agents that can forget, and prove it."

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks for an orderly end; with the handler gone, a second
	// one kills.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program, without its globals. It returns the exit status.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	con := &console{Getenv: getenv, Stdin: stdin, Stdout: stdout, Stderr: stderr}
	left := false // by --help or --version, which kong would answer with os.Exit
	parser, err := kong.New(new(cli),
		kong.Name("memd"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { left = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
		kong.ExplicitGroups(commandGroups),
		kong.Vars(witnessDefaults()),
		kong.Resolvers(environment(getenv)),
		kong.ValueFormatter(helpWithVariable),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(con),
	)
	if err != nil {
		panic(fmt.Sprintf("the command line does not fit together: %v", err))
	}
	command, err := parser.Parse(args)
	switch {
	case left:
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "memd: %v\n", err)
		fmt.Fprintf(stderr, "Run \"%s --help\" for what it takes.\n", commandOf(err))
		return exitUsage
	}
	err = command.Run()
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "memd: %v\n", err)
		fmt.Fprintf(stderr, "Run \"%s --help\" for what it takes.\n", command.Selected().FullPath())
		return exitUsage
	}
	printFailure(stderr, err)
	return exitFailure
}

// commandOf returns the command as far as it was understood.
func commandOf(err error) string {
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		if node := parse.Context.Selected(); node != nil {
			return node.FullPath()
		}
	}
	return "memd"
}

// usageError is a mistake in the command line that the parser cannot see.
type usageError struct{ problem string }

func (e *usageError) Error() string { return e.problem }

func usagef(format string, args ...any) error {
	return &usageError{problem: fmt.Sprintf(format, args...)}
}
