package memd_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "forgettable.dev/memd"

// mayImport is the import direction: what each package of the module may
// import of the module, tests aside. A tree ends in "/...". Whoever adds a
// package adds its line, and thereby says where it stands.
var mayImport = map[string][]string{
	".":                   {},
	"migrations":          {},
	"gen/...":             {"gen/..."},
	"proto/...":           {},
	"internal/fault":      {"."},
	"internal/failures":   {},
	"internal/cluster":    {},
	"internal/pg":         {".", "migrations"},
	"internal/pgtest":     {"internal/pg", "internal/cluster", "migrations"},
	"embed":               {"."},
	"shred/...":           {".", "internal/pg", "shred/..."},
	"shred/ledger":        {"."},
	"provenance":          {".", "internal/pg"},
	"tombstones":          {".", "internal/pg"},
	"journal":             {".", "internal/pg", "shred/ledger"},
	"restore":             {".", "internal/pg", "journal", "shred", "shred/ledger", "memory", "sessions", "artifacts", "tenants", "erasure", "receipts"},
	"undo":                {".", "internal/pg", "internal/auth", "shred", "shred/ledger", "journal", "erasure", "tenants"},
	"backup":              {".", "internal/pg", "internal/cluster", "journal"},
	"receipts":            {".", "internal/pg", "shred", "shred/ledger"},
	"tenants":             {".", "internal/pg", "shred", "provenance", "tombstones"},
	"eraser":              {"gen/..."},
	"purge":               {".", "gen/...", "internal/pg", "shred", "eraser"},
	"internal/auth":       {".", "internal/pg", "tenants"},
	"compact":             {".", "internal/pg", "memory/sketches"},
	"artifacts":           {".", "internal/pg", "shred", "provenance", "tombstones"},
	"memory/codes":        {},
	"memory/sketches":     {".", "internal/pg"},
	"memory":              {".", "memory/codes", "memory/sketches", "internal/pg", "shred", "provenance", "tombstones", "embed"},
	"sessions":            {".", "internal/pg", "shred", "provenance", "tombstones"},
	"export":              {".", "internal/pg", "shred", "provenance", "memory", "sessions", "artifacts", "tenants"},
	"erasure":             {".", "internal/pg", "shred", "provenance", "tombstones", "memory", "memory/sketches", "sessions", "artifacts", "tenants", "purge", "receipts", "compact", "export"},
	"canary":              {".", "internal/pg", "shred/..."},
	"internal/server":     {".", "gen/...", "internal/pg", "internal/auth", "shred", "provenance", "tombstones", "memory", "sessions", "artifacts", "tenants", "erasure", "purge", "embed", "receipts", "compact", "export"},
	"internal/server/...": {".", "gen/...", "internal/server", "internal/pg", "internal/auth", "shred", "memory", "sessions", "artifacts", "tenants", "erasure", "embed"},
	"internal/node":       {".", "gen/...", "shred/...", "internal/server", "internal/auth", "internal/pg", "journal", "provenance", "tombstones", "memory", "sessions", "artifacts", "tenants", "erasure", "purge", "embed", "canary", "receipts", "compact", "export"},
	"internal/dev":        {".", "compact", "internal/cluster", "internal/pg", "internal/auth", "internal/node", "tenants", "embed", "shred/kmsemu"},
	"internal/demo":       {".", "gen/...", "eraser", "internal/cluster", "backup", "internal/dev", "internal/auth", "shred/...", "tenants"},
	"bench":               {".", "gen/...", "internal/dev", "internal/auth", "internal/pg", "journal", "backup", "restore", "memory", "sessions", "tenants", "shred/...", "artifacts", "erasure", "export", "embed"},
	"bench/report":        {"bench"},
	"internal/attack":     {},
	"internal/cleartext":  {},
	"internal/memdtest":   {"./..."},
	"cmd/...":             {"./..."},
}

// onlyFrom names the packages that may import something from outside the
// module, tests aside.
var onlyFrom = map[string][]string{
	"cloud.google.com/go/kms/apiv1": {"shred/gcpkms"},
	"connectrpc.com/":               {"gen/...", "internal/server/...", "bench", "cmd/...", "eraser", "purge"},
	"github.com/philippgille/":      {"bench"},
	"gonum.org/":                    {"bench/report"},
	"github.com/riverqueue/river":   {"erasure", "internal/pg"},
	"github.com/riverqueue/river/":  {"erasure", "internal/pg"},
	"testing":                       {"internal/pgtest", "internal/memdtest", "shred/kmstest"},
}

// onlyInTests are packages of the module for tests alone.
var onlyInTests = []string{"internal/pgtest", "internal/memdtest", "internal/fault", "shred/kmstest"}

// ownerOf says which package's SQL may name a table. Others call the owner's
// functions, or a view or function of the migrations.
var ownerOf = map[string]string{
	"installation": "provenance", "schema_versions": "internal/pg",
	"tenants": "tenants", "tenant_transitions": "tenants", "approvals": "tenants",
	"tenant_keys": "shred", "key_trees": "shred", "punctures": "shred", "rotations": "shred", "instances": "shred", "instance_epochs": "shred",
	"subjects": "provenance", "sessions": "provenance", "subject_counters": "provenance",
	"fences": "tombstones", "tombstones": "tombstones", "hides": "tombstones",
	"memories": "memory", "memory_contributions": "memory", "memory_sources": "memory", "sketches": "memory/sketches",
	"session_heads": "sessions", "session_events": "sessions", "session_state": "sessions", "user_state": "sessions", "app_state": "sessions", "dropped_events": "sessions",
	"erasures": "erasure", "erasure_steps": "erasure", "erasure_fallen": "erasure", "erasure_subjects": "erasure",
	"holds": "erasure", "job_counters": "erasure", "verifications": "erasure", "survivors": "erasure",
	"purge_targets": "purge", "purge_acks": "purge",
	"compactions": "compact", "compaction_tables": "compact", "compaction_settings": "compact",
	"principals": "internal/auth",
	"undos":      "shred", "reembeddings": "memory",
	"exports": "export", "export_parts": "export", "export_objects": "export", "export_links": "export", "export_erasures": "export",
	"ledger_outbox": "journal", "ledger_state": "journal", "replays": "journal",
	"artifacts": "artifacts", "artifact_versions": "artifacts", "artifact_chunks": "artifacts",
	"receipts": "receipts", "receipt_keys": "receipts",
}

// witnesses read tables that are not theirs: what they check must not be asked
// through the code that they check. A SELECT is all they get. The demo has an
// INSERT too, to be seen refused, and a DELETE, which is what it does instead of
// forgetting, to be seen found out.
var witnesses = map[string]*regexp.Regexp{
	"canary":        regexp.MustCompile(`^\s*SELECT\b`),
	"internal/demo": regexp.MustCompile(`^\s*(SELECT|INSERT INTO|DELETE)\b`),
}

// Sizes above which a file is to be split by concept.
const (
	maxLines     = 600
	maxTestLines = 900
)

// source is one parsed Go file of the module.
type source struct {
	name    string // from the root, with slashes
	folder  string
	test    bool
	lines   int
	file    *ast.File
	fileSet *token.FileSet
}

func (s source) imports() []string {
	var paths []string
	for _, i := range s.file.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, content, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		all = append(all, source{
			name: name, folder: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
			lines: bytes.Count(content, []byte("\n")), file: file, fileSet: set,
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d Go files were found: the test looks in the wrong place", len(all))
	}
	return all
}

// matches reports whether a folder is meant by a pattern.
func matches(pattern, folder string) bool {
	tree, isTree := strings.CutSuffix(pattern, "/...")
	if !isTree {
		return pattern == folder
	}
	return tree == "." || folder == tree || strings.HasPrefix(folder, tree+"/")
}

func matchesAny(patterns []string, folder string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, folder) })
}

// allowed returns the line of mayImport for a folder: its own before a tree's.
func allowed(folder string) (patterns []string, found bool) {
	if patterns, found = mayImport[folder]; found {
		return patterns, true
	}
	best := ""
	for p := range mayImport {
		if matches(p, folder) && len(p) > len(best) {
			best = p
		}
	}
	return mayImport[best], best != ""
}

func TestImports_RunDownwardsOnly(t *testing.T) {
	for _, s := range sources(t) {
		patterns, known := allowed(s.folder)
		if !known {
			t.Errorf("%s: package %s has no line in mayImport", s.name, s.folder)
			continue
		}
		for _, imported := range s.imports() {
			rest, ours := strings.CutPrefix(imported, module)
			if !ours || rest != "" && rest[0] != '/' {
				if !s.test {
					checkForeign(t, s, imported)
				}
				continue
			}
			target := strings.TrimPrefix(rest, "/")
			if target == "" {
				target = "."
			}
			switch {
			case s.test || target == s.folder:
			case slices.Contains(onlyInTests, target) && !slices.Contains(onlyInTests, s.folder):
				t.Errorf("%s imports %s, which is for tests", s.name, target)
			case slices.Contains(onlyInTests, s.folder):
			case !matchesAny(patterns, target):
				t.Errorf("%s imports %s, which is not below it", s.name, target)
			}
		}
	}
}

func checkForeign(t *testing.T, s source, imported string) {
	t.Helper()
	for prefix, from := range onlyFrom {
		if (imported == prefix || strings.HasSuffix(prefix, "/") && strings.HasPrefix(imported, prefix)) && !matchesAny(from, s.folder) {
			t.Errorf("%s imports %s, which only %v may", s.name, imported, from)
		}
	}
}

var (
	namedInSQL = regexp.MustCompile(`\bmemd\.([a-z_]+)\b`)
	created    = regexp.MustCompile(`CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?memd\.([a-z_]+)`)
)

func TestTables_HaveOneOwner(t *testing.T) {
	seen := map[string]bool{"schema_versions": true} // Made by goose.
	names, err := fs.Glob(os.DirFS("migrations"), "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	for _, name := range names {
		content, err := os.ReadFile(path.Join("migrations", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range created.FindAllStringSubmatch(string(content), -1) {
			seen[m[1]] = true
			if ownerOf[m[1]] == "" {
				t.Errorf("migrations/%s makes memd.%s, which has no owner in ownerOf", name, m[1])
			}
		}
	}
	for table := range ownerOf {
		if !seen[table] {
			t.Errorf("ownerOf names memd.%s, which no migration makes", table)
		}
	}
	for _, s := range sources(t) {
		if s.test || strings.HasPrefix(s.folder, "gen/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				text = literal.Value
			}
			if w := witnesses[s.folder]; w != nil && w.MatchString(text) {
				return true
			}
			for _, m := range namedInSQL.FindAllStringSubmatch(text, -1) {
				if owner := ownerOf[m[1]]; owner != "" && owner != s.folder {
					t.Errorf("%s names memd.%s, which is %s's", s.fileSet.Position(literal.Pos()), m[1], owner)
				}
			}
			return true
		})
	}
}

func TestFiles_StaySmall(t *testing.T) {
	for _, s := range sources(t) {
		limit := maxLines
		if s.test {
			limit = maxTestLines
		}
		if s.lines > limit && !strings.HasPrefix(s.folder, "gen/") {
			t.Errorf("%s has %d lines, above %d", s.name, s.lines, limit)
		}
		base := path.Base(s.name)
		if slices.Contains([]string{"utils.go", "util.go", "helpers.go", "types.go", "common.go"}, base) {
			t.Errorf("%s is named after no concept", s.name)
		}
	}
}

func TestPackages_HaveAComment(t *testing.T) {
	commented, folders := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.test || strings.HasPrefix(s.folder, "gen/") {
			continue
		}
		folders[s.folder] = true
		commented[s.folder] = commented[s.folder] || s.file.Doc != nil
	}
	for folder := range folders {
		if !commented[folder] {
			t.Errorf("package %s has no comment", folder)
		}
	}
}

// A test that could not run is a failure, and one that sleeps for something to
// have happened fails on a slower machine.
func TestTests_NeitherSkipNorSleep(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			receiver := ""
			if x, ok := selector.X.(*ast.Ident); ok {
				receiver = x.Name
			}
			switch name := selector.Sel.Name; {
			case slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, name):
				t.Errorf("%s skips", s.fileSet.Position(call.Pos()))
			case receiver == "time" && name == "Sleep" && !usesSynctest(s):
				t.Errorf("%s sleeps", s.fileSet.Position(call.Pos()))
			}
			return true
		})
	}
}

// usesSynctest: under testing/synctest a sleep costs no time and is exact.
func usesSynctest(s source) bool { return slices.Contains(s.imports(), "testing/synctest") }

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, folder string
		want            bool
	}{
		{"shred", "shred", true},
		{"shred", "shred/ledger", false},
		{"shred/...", "shred/ledger", true},
		{"shred/...", "shredder", false},
		{"./...", "memory", true},
		{".", ".", true},
		{".", "memory", false},
	} {
		if got := matches(c.pattern, c.folder); got != c.want {
			t.Error(fmt.Sprintf("matches(%q, %q)", c.pattern, c.folder), got)
		}
	}
}
