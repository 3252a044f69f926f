package ledger_test

import (
	"net/http/httptest"
	"testing"

	"github.com/fsouza/fake-gcs-server/fakestorage"

	"forgettable.dev/memd/shred/ledger"
)

// openGCS gives a bucket of a server of this process that answers as Google Cloud
// Storage does, to the client that talks to the real one.
func openGCS(t *testing.T) ledger.Ledger {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	host := server.Listener.Addr().String()
	gcs, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true, PublicHost: host})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gcs.Stop)
	gcs.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: "ledger"})
	server.Config.Handler = gcs.HTTPHandler()
	server.Start()
	t.Cleanup(server.Close)
	t.Setenv("STORAGE_EMULATOR_HOST", host)
	b, err := ledger.OpenBucket(t.Context(), "gs://ledger")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}
