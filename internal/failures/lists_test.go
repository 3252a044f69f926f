package failures_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// reports are those whose kinds of failure have a test: here, or where a list
// says. They are written as the lists write them.
const reports = `adk-go#1175 adk-go#1195 adk-go#482 adk-python#1019 adk-python#2752 AgentCore breeze#4100 chroma#583 #948
cognee#2732 #1534 #4235 fides#2048 graphiti#1083 #1489 graphiti#1705 graphiti#1837 langgraph#7206 langgraph#8757 langgraph#8902 letta#1917
mem0#3746 #3928 mem0#5160 mem0#5578 mem0#5696 mem0#6080 #4236 mem0#6515 mem0#6627 mem0#7226 #3610 #3695 #5066 #5270 Memori#136 MemOS#1103
mnemosyne#904 opencode-supermemory#5 pgvector#450 semantica#1027 stella#671 TencentDB-Agent-Memory#1434 Zep`

var (
	// elsewhere is a test of another package in a list, own one of this.
	elsewhere = regexp.MustCompile(`\b([a-z0-9]+)\.(Test\w+)`)
	own       = regexp.MustCompile(`(?m)^\t.*?\s{2,}([A-Z][a-z]\w+);?(?: \(\w+\.go\))?$`)
)

// The lists at the beginning of the files are true: every report has its line, and
// every test that a line names is there.
func TestLists_NameTestsThatExist(t *testing.T) {
	tests, lists := map[string]bool{}, ""
	files := token.NewFileSet()
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		here := filepath.Dir(path) == filepath.Join("..", "..", "internal", "failures")
		f, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				tests[filepath.Base(filepath.Dir(path))+"."+f.Name.Name] = true
				if _, name, found := cutLast(f.Name.Name, "_"); here && found {
					tests[name] = true
				}
			}
		}
		if here {
			for _, c := range f.Comments {
				lists += c.Text()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, m := range append(elsewhere.FindAllStringSubmatch(lists, -1), own.FindAllStringSubmatch(lists, -1)...) {
		name := strings.Join(m[1:], ".")
		named++
		if !tests[name] {
			t.Errorf("a list names %s, which there is not", name)
		}
	}
	for _, report := range strings.Fields(reports) {
		if !strings.Contains(lists, report) {
			t.Errorf("%s is in no list", report)
		}
	}
	if named < 40 {
		t.Errorf("only %d names were found in the lists", named)
	}
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
