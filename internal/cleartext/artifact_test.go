package cleartext_test

import (
	"strings"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
)

// throughArtifacts says canaries in names, media types, metadata and bytes, as a
// session's artifact and as a user's, in whole and in streams that are refused.
func (w *world) throughArtifacts(user, session string) {
	ctx := w.t.Context()
	owner := &memdv1.ArtifactOwner{App: app, UserId: user, SessionId: session}
	header := func(prefix string) *memdv1.SaveArtifactHeader {
		return &memdv1.SaveArtifactHeader{
			Owner: owner, Name: prefix + w.word("artifact"), MimeType: "text/" + w.word("mime"),
			Metadata: map[string]string{w.word("key"): w.word("value")},
		}
	}
	for _, prefix := range []string{"", "user:"} {
		h := header(prefix)
		good[*memdv1.SaveArtifactInlineResponse](w, "SaveArtifactInline")(w.artifacts.SaveArtifactInline(ctx,
			&memdv1.SaveArtifactInlineRequest{Header: h, Data: []byte(w.word("bytes"))}))
		stream, err := w.artifacts.SaveArtifact(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		_ = stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Header{Header: h}})
		_ = stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Data{Data: []byte(strings.Repeat(w.word("long")+" ", 30_000))}})
		good[*memdv1.SaveArtifactResponse](w, "SaveArtifact")(stream.CloseAndReceive())
		good[*memdv1.LoadArtifactInlineResponse](w, "LoadArtifactInline")(w.artifacts.LoadArtifactInline(ctx,
			&memdv1.LoadArtifactInlineRequest{Load: &memdv1.LoadArtifactRequest{Owner: owner, Name: h.GetName()}}))
		load, err := w.artifacts.LoadArtifact(ctx, &memdv1.LoadArtifactRequest{Owner: owner, Name: h.GetName()})
		for n := 0; err == nil; n++ {
			if _, err = load.Receive(); err != nil && n < 2 {
				w.t.Fatalf("LoadArtifact: %v", err)
			}
		}
		good[*memdv1.ListArtifactVersionsResponse](w, "ListArtifactVersions")(w.artifacts.ListArtifactVersions(ctx,
			&memdv1.ListArtifactVersionsRequest{Owner: owner, Name: h.GetName()}))
		good[*memdv1.GetArtifactVersionResponse](w, "GetArtifactVersion")(w.artifacts.GetArtifactVersion(ctx,
			&memdv1.GetArtifactVersionRequest{Owner: owner, Name: h.GetName()}))
		if len(good[*memdv1.ListArtifactsResponse](w, "ListArtifacts")(w.artifacts.ListArtifacts(ctx, &memdv1.ListArtifactsRequest{Owner: owner})).GetArtifacts()) == 0 {
			w.t.Fatal("ListArtifacts finds nothing: the test would be vacuous")
		}
		good[*memdv1.DeleteArtifactResponse](w, "DeleteArtifact")(w.artifacts.DeleteArtifact(ctx,
			&memdv1.DeleteArtifactRequest{Owner: owner, Name: h.GetName(), What: &memdv1.DeleteArtifactRequest_Version{Version: 0}}))
	}
	// A stream that goes wrong in the middle.
	stream, err := w.artifacts.SaveArtifact(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	for range 2 {
		_ = stream.Send(&memdv1.SaveArtifactRequest{Part: &memdv1.SaveArtifactRequest_Header{Header: header("")}})
	}
	bad[*memdv1.SaveArtifactResponse](w, "two headers")(stream.CloseAndReceive())
	bad[*memdv1.GetArtifactVersionResponse](w, "a name never saved")(w.artifacts.GetArtifactVersion(ctx,
		&memdv1.GetArtifactVersionRequest{Owner: owner, Name: w.word("artifact")}))
	bad[*memdv1.SaveArtifactInlineResponse](w, "a name that is too long")(w.artifacts.SaveArtifactInline(ctx,
		&memdv1.SaveArtifactInlineRequest{Header: &memdv1.SaveArtifactHeader{Owner: owner, Name: strings.Repeat(w.word("artifact"), 40)}}))
}
