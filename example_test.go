package memd_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"google.golang.org/protobuf/types/known/timestamppb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
)

func Example() {
	// The key is one that "memd apikey create" or "memd dev" prints.
	if err := remember(context.Background(), os.Getenv("MEMD_URL"), os.Getenv("MEMD_API_KEY")); err != nil {
		fmt.Println(err)
	}
}

func remember(ctx context.Context, url, key string) error {
	authenticate := func(next connect.ClientFunc) connect.ClientFunc {
		return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
			if call, ok := connect.CallInfoForClientContext(ctx); ok {
				call.RequestHeader().Set("Authorization", "Bearer "+key)
			}
			return next(ctx, spec)
		}
	}
	client := connect.NewClient(connecthttp.NewTransport(http.DefaultClient, url), authenticate)
	memories := memdv1connect.NewMemoryServiceClient(client)

	ada := &memdv1.Scope{Owner: &memdv1.Scope_User{User: &memdv1.UserScope{App: "support", UserId: "ada@example.org"}}}
	_, err := memories.Add(ctx, &memdv1.AddRequest{Rows: []*memdv1.Row{{
		Scope: ada, SessionId: "2026-06-01", EventId: "7", Kind: memdv1.Kind_KIND_RAW,
		Text:       "Please send the inhaler to my sister's address.",
		SourceTime: timestamppb.Now(),
	}}})
	if err != nil {
		return err
	}
	found, err := memories.Search(ctx, &memdv1.SearchRequest{Scope: ada, Text: "where to send the inhaler", TopK: 5})
	if err != nil {
		return err
	}
	for _, hit := range found.GetHits() {
		fmt.Println(hit.GetScore(), hit.GetMemory().GetText())
	}
	return nil
}

// The README's Go is this file's, so that it compiles.
func TestReadme_ShowsTheExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "```go\n")
	code, _, closed := strings.Cut(rest, "```")
	if !found || !closed || !strings.Contains(string(source), "\n"+code) {
		t.Error("the Go in the README is not remember in example_test.go")
	}
}
