package server_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	memdv1 "forgettable.dev/memd/gen/memd/v1"
	"forgettable.dev/memd/gen/memd/v1/memdv1connect"
	"forgettable.dev/memd/internal/auth"
)

// names are the ids that a caller can paste into a request.
type names struct {
	app, user, session, memory, event, request, tenant, apiKey, hold string
}

// foreign holds, for each procedure that takes somebody's id, requests with
// such ids in the places where an id goes: $app, $user and so on. A procedure
// without any says why not.
var foreign = map[string][]string{
	"MemoryService/Add": {
		`{"rows":[{"scope":{"user":{"app":"own","userId":"own"}},"kind":"KIND_FACT","text":"t","sources":[{"memoryId":"$memory"}]}]}`,
		`{"rows":[{"scope":{"shared":{"app":"$app"}},"kind":"KIND_FACT","text":"t","sources":[{"memoryId":"$memory"}]}]}`,
	},
	"MemoryService/Search": {
		`{"scope":{"user":{"app":"$app","userId":"$user"}},"text":"tea","topK":10,"includeShared":true}`,
		`{"scope":{"user":{"app":"$app","userId":"$user"}},"text":"tea","topK":10,"filter":{"sessionIds":["$session"]}}`,
		`{"scope":{"shared":{"app":"$app"}},"text":"tea"}`,
	},
	"MemoryService/Get": {
		`{"scope":{"user":{"app":"$app","userId":"$user"}},"memoryId":"$memory"}`,
		`{"scope":{"user":{"app":"own","userId":"own"}},"memoryId":"$memory"}`,
		`{"scope":{"shared":{"app":"$app"}},"memoryId":"$memory"}`,
	},
	"MemoryService/List": {
		`{"scope":{"user":{"app":"$app","userId":"$user"}},"filter":{"sessionIds":["$session"]}}`,
		`{"scope":{"user":{"app":"$app","userId":"$user"}}}`,
		`{"scope":{"shared":{"app":"$app"}}}`,
	},
	"MemoryService/Update": {
		`{"scope":{"user":{"app":"$app","userId":"$user"}},"memoryId":"$memory","expectedVersion":"1","updateMask":"text","text":"mine"}`,
		`{"scope":{"user":{"app":"own","userId":"own"}},"memoryId":"$memory","expectedVersion":"1","updateMask":"text","text":"mine"}`,
	},
	"MemoryService/Delete": {
		`{"scope":{"user":{"app":"$app","userId":"$user"}},"memoryId":"$memory","deleteDerived":true}`,
		`{"scope":{"user":{"app":"own","userId":"own"}},"memoryId":"$memory","deleteDerived":true}`,
		`{"scope":{"shared":{"app":"$app"}},"memoryId":"$memory","deleteDerived":true}`,
	},
	"MemoryService/AddSession": {
		`{"app":"$app","userId":"$user","sessionId":"$session"}`,
		`{"app":"$app","userId":"own","sessionId":"$session"}`,
	},
	"SessionService/GetSession": {
		`{"app":"$app","userId":"$user","sessionId":"$session"}`,
		`{"app":"$app","userId":"own","sessionId":"$session"}`,
	},
	"SessionService/AppendEvents": {
		`{"app":"$app","userId":"$user","sessionId":"$session","events":[{"id":"$event","author":"user"}]}`,
		`{"app":"$app","userId":"own","sessionId":"$session","events":[{"id":"$event","author":"user","stateDelta":{"app:k":"1"}}]}`,
	},
	"SessionService/ListSessions": {
		`{"app":"$app","userId":"$user"}`,
		`{"app":"$app"}`,
	},
	// What it answers is the session that it made.
	"SessionService/CreateSession": {`{"app":"own","userId":"$request","state":{"app:k":"1"}}`},
	"SessionService/DeleteSession": {`{"app":"$app","userId":"$user","sessionId":"$session","requestId":"$own"}`},
	"ErasureService/ForgetUser":    {`{"app":"$app","userId":"$user","requestId":"$own"}`},
	"ErasureService/ForgetSession": {`{"app":"$app","userId":"$user","sessionId":"$session","requestId":"$own"}`},
	"ErasureService/DryRun": {
		`{"app":"$app","userId":"$user"}`,
		`{"app":"$app","userId":"$user","sessionId":"$session"}`,
		`{"tenant":"$tenant"}`,
	},
	"ErasureService/GetErasure":      {`{"requestId":"$request"}`},
	"ErasureService/GetReceipt":      {`{"requestId":"$request"}`},
	"ErasureService/VerifyErasure":   {`{"requestId":"$request"}`},
	"ErasureService/WatchErasure":    {`{"requestId":"$request"}`},
	"ErasureService/Hold":            {`{"holdId":"$own","app":"$app","userId":"$user","reason":"a dispute"}`},
	"ErasureService/ReleaseHold":     {`{"holdId":"$hold"}`},
	"ErasureService/ListHolds":       {`{"released":true}`},
	"ErasureService/RemoveSurvivors": {`{"requestId":"$request","rows":["memories $memory"]}`},
	"ErasureService/GetReceiptKeys":  {`{}`},
	"ErasureService/ListErasures":    {`{"states":["ERASURE_STATE_RUNNING"]}`},
	// A tenant's own key may not, whichever tenant it names.
	"ErasureService/DeleteTenant":    {`{"tenant":"$tenant","confirmDisplayName":"","requestId":"$own"}`},
	"ErasureService/ApproveDeletion": {`{"tenant":"$tenant","confirmDisplayName":"","digest":"` + strings.Repeat("0", 64) + `"}`},
	"ErasureService/VoidApproval":    {`{"tenant":"$tenant","approvalId":"$own"}`},
	"ErasureService/ListApprovals":   {`{"tenant":"$tenant"}`},
	"ArtifactService/SaveArtifactInline": {
		// Whose version it becomes says how many there were.
		`{"header":{"owner":{"app":"$app","userId":"$user","sessionId":"$session"},"name":"report.txt"},"data":"dGVh"}`,
	},
	"ArtifactService/SaveArtifact": {
		`{"header":{"owner":{"app":"$app","userId":"$user"},"name":"user:photo.png"}}`,
	},
	"ArtifactService/LoadArtifact": {
		`{"owner":{"app":"$app","userId":"$user","sessionId":"$session"},"name":"report.txt"}`,
		`{"owner":{"app":"$app","userId":"own","sessionId":"$session"},"name":"report.txt"}`,
	},
	"ArtifactService/LoadArtifactInline": {
		`{"load":{"owner":{"app":"$app","userId":"$user","sessionId":"$session"},"name":"report.txt"}}`,
		`{"load":{"owner":{"app":"$app","userId":"$user"},"name":"user:photo.png"}}`,
	},
	"ArtifactService/ListArtifacts": {
		`{"owner":{"app":"$app","userId":"$user","sessionId":"$session"}}`,
		`{"owner":{"app":"$app","userId":"$user"}}`,
	},
	"ArtifactService/ListArtifactVersions": {`{"owner":{"app":"$app","userId":"$user","sessionId":"$session"},"name":"report.txt"}`},
	"ArtifactService/GetArtifactVersion":   {`{"owner":{"app":"$app","userId":"$user","sessionId":"$session"},"name":"report.txt"}`},
	"ArtifactService/DeleteArtifact":       {`{"owner":{"app":"$app","userId":"$user","sessionId":"$session"},"name":"report.txt","allVersions":true}`},
	"ExportService/StartExport": {
		`{"exportId":"$own","app":"$app","userId":"$user","recipients":["age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"]}`,
		`{"tenant":"$tenant","exportId":"$own","recipients":["age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj"]}`,
	},
	"ExportService/GetExport":        {`{"exportId":"$request"}`, `{"tenant":"$tenant","exportId":"$own"}`},
	"ExportService/ListExports":      {`{"tenant":"$tenant"}`},
	"ExportService/DeleteExport":     {`{"exportId":"$request"}`, `{"tenant":"$tenant","exportId":"$own"}`},
	"ExportService/CreateExportLink": {`{"exportId":"$request"}`, `{"tenant":"$tenant","exportId":"$own"}`},
	"ExportService/RevokeExportLink": {`{"linkId":"$request"}`, `{"tenant":"$tenant","linkId":"$own"}`},
	"TargetService/CreateTarget":     {`{"tenant":"$tenant","name":"archive","kind":"TARGET_KIND_RETENTION","retention":"86400s"}`},
	"TargetService/ListTargets":      {`{"tenant":"$tenant"}`},
	"TargetService/DeleteTarget":     {`{"tenant":"$tenant","name":"store"}`},
	"TargetService/TestTarget":       {`{"tenant":"$tenant","name":"store"}`},
	"AdminService/GetTenant":         {`{"name":"$tenant"}`},
	"AdminService/SetPolicy":         {`{"tenant":"$tenant","policy":{"index":"INDEX_MODE_SEALED"}}`},
	"ErasureService/PlanRetention":   {`{"tenant":"$tenant"}`},
	"ErasureService/RunRetention":    {`{"tenant":"$tenant"}`},
	"AdminService/CreateApiKey":      {`{"tenant":"$tenant","name":"k","roles":["ROLE_AGENT"]}`},
	"AdminService/ListApiKeys":       {`{"tenant":"$tenant"}`},
	"AdminService/RevokeApiKey":      {`{"keyId":"$key"}`},
	// A tenant's operator may make none, whatever it is called.
	"AdminService/CreateTenant": {`{"name":"$tenant"}`},
	// Nor suspend any, its own included.
	"AdminService/SuspendTenant":   {`{"tenant":"$tenant","reason":"unpaid"}`},
	"AdminService/ResumeTenant":    {`{"tenant":"$tenant","reason":"paid"}`},
	"AdminService/MoveTenant":      {`{"tenant":"$tenant","state":"TENANT_STATE_DRAINED","reason":"it leaves"}`},
	"AdminService/ListTransitions": {`{"tenant":"$tenant"}`},
	// No tenant's key may, because the tables are everybody's.
	"CompactService/PlanCompaction":        {`{}`},
	"CompactService/GetCompactions":        {`{"number":"1"}`},
	"CompactService/RunCompaction":         {`{"mode":"COMPACTION_MODE_VACUUM"}`},
	"CompactService/PauseCompaction":       {`{}`},
	"CompactService/ResumeCompaction":      {`{}`},
	"CompactService/SetCompactionSchedule": {`{"schedule":{"mode":"COMPACTION_MODE_VACUUM","minutes":60,"days":[0]}}`},
	// Takes no id.
	"AdminService/ListTenants": {`{}`},
}

func (n names) in(template string) string {
	return strings.NewReplacer("$app", n.app, "$user", n.user, "$session", n.session, "$memory", n.memory,
		"$event", n.event, "$request", n.request, "$tenant", n.tenant, "$key", n.apiKey,
		"$hold", n.hold, "$own", uuid.NewString()).Replace(template)
}

// differing is what two answers to the same question may differ in: ids made
// for the caller, times, what was asked for itself, whose turn it was, and the
// spaces that the JSON library strews in.
var differing = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[0-9:.]+Z` +
	`|"app": ?"\w+"|"salt": ?"[0-9a-f]+"|"took": ?"[0-9.]+s"|"keyEpoch": ?"\d+"|cryptoKeyVersions/\d+| `)

// TestForeign_AnIDOfAnotherTenantIsAsGoodAsNone asks every procedure about
// another tenant's ids, and about ids that nobody has: the answers are the same
// but for what is random in them, and the other tenant loses nothing.
func TestForeign_AnIDOfAnotherTenantIsAsGoodAsNone(t *testing.T) {
	in := setup(t)
	in.work()
	s := in.serve()
	acme, globex := in.tenant("acme"), in.tenant("globex")
	const every = auth.Agent | auth.Eraser | auth.Auditor | auth.Operator | auth.Approver
	theirKey, theirs := in.key(acme.No, every)
	_, ours := in.key(globex.No, every)
	row := raw(user("chat", "alice"), "tea")
	row.SessionId, row.EventId = "s1", "e1"
	talk := memdv1connect.NewSessionServiceClient(s.client(theirs))
	if _, err := talk.CreateSession(t.Context(), &memdv1.CreateSessionRequest{
		App: "chat", UserId: "alice", SessionId: "s1", State: map[string]string{"k": `"tea"`, "user:k": `"tea"`, "app:k": `"tea"`},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := talk.AppendEvents(t.Context(), &memdv1.AppendEventsRequest{
		App: "chat", UserId: "alice", SessionId: "s1", Events: []*memdv1.Event{{Id: "e1", Author: "user"}},
	}); err != nil {
		t.Fatal(err)
	}
	keep := memdv1connect.NewArtifactServiceClient(s.client(theirs))
	for _, name := range []string{"report.txt", "user:photo.png"} {
		if _, err := keep.SaveArtifactInline(t.Context(), &memdv1.SaveArtifactInlineRequest{Header: &memdv1.SaveArtifactHeader{
			Owner: &memdv1.ArtifactOwner{App: "chat", UserId: "alice", SessionId: "s1"}, Name: name,
		}, Data: []byte("tea")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := memdv1connect.NewTargetServiceClient(s.client(theirs)).CreateTarget(t.Context(), &memdv1.CreateTargetRequest{
		Tenant: "acme", Name: "store", Kind: memdv1.TargetKind_TARGET_KIND_RETENTION, Retention: durationpb.New(24 * time.Hour),
	}); err != nil {
		t.Fatal(err)
	}
	common := raw(shared("chat"), "tea for all")
	common.Impersonal = true
	added, err := s.memory(theirs).Add(t.Context(), &memdv1.AddRequest{Rows: []*memdv1.Row{row, common}})
	if err != nil {
		t.Fatal(err)
	}
	request := uuid.NewString()
	if _, err := s.erasure(theirs).ForgetUser(t.Context(), &memdv1.ForgetUserRequest{App: "chat", UserId: "gone", RequestId: request}); err != nil {
		t.Fatal(err)
	}
	hold := uuid.NewString()
	if _, err := s.erasure(theirs).Hold(t.Context(), &memdv1.HoldRequest{HoldId: hold, App: "chat", UserId: "alice", Reason: "a dispute"}); err != nil {
		t.Fatal(err)
	}
	census := func() string {
		t.Helper()
		out := ""
		for _, body := range []string{
			`{"scope":{"user":{"app":"chat","userId":"alice"}}}`, `{"scope":{"shared":{"app":"chat"}}}`,
		} {
			status, answer := s.post(t, patience, "/memd.v1.MemoryService/List", theirs, "json", []byte(body), false)
			if status != http.StatusOK || !strings.Contains(answer, "tea") {
				t.Errorf("what is theirs: %d %s", status, answer)
			}
			out += answer
		}
		return out
	}
	before := census()
	real := names{"chat", "alice", "s1", added.GetResults()[0].GetMemoryId(), "e1", request, "acme", theirKey.ID.String(), hold}
	shared := real
	shared.memory = added.GetResults()[1].GetMemoryId()
	none := names{"talk", "nobody", "s0", uuid.NewString(), "e0", uuid.NewString(), "initech", uuid.NewString(), uuid.NewString()}
	// The hold comes last: it would keep whoever is forgotten after it.
	holding := func(m protoreflect.MethodDescriptor) int {
		if m.Name() == "Hold" {
			return 1
		}
		return 0
	}
	all := methods()
	slices.SortStableFunc(all, func(a, b protoreflect.MethodDescriptor) int { return holding(a) - holding(b) })
	for _, method := range all {
		procedure := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
		templates, ok := foreign[strings.TrimPrefix(procedure, "/memd.v1.")]
		if !ok {
			t.Errorf("%s has no requests here: add some with each id that it takes", procedure)
		}
		for _, template := range templates {
			ask := func(n names) string {
				status, answer := s.post(t, patience, procedure, ours, "json", []byte(n.in(template)), method.IsStreamingClient() || method.IsStreamingServer())
				return http.StatusText(status) + " " + differing.ReplaceAllString(answer, "#")
			}
			want := ask(none)
			asked := []names{real}
			if strings.Contains(template, "$memory") {
				asked = append(asked, shared)
			}
			for _, n := range asked {
				if diff := cmp.Diff(want, ask(n)); diff != "" {
					t.Errorf("%s %s tells another tenant's from none:\n%s", procedure, template, diff)
				}
			}
			if strings.Contains(want, `"invalid_argument"`) {
				t.Errorf("%s %s is malformed, which proves nothing: %s", procedure, template, want)
			}
		}
	}
	if after := census(); after != before {
		t.Error("the other tenant's rows changed")
	}
	// The other tenant's key is alive, and an answer of their own is another one.
	if status, answer := s.post(t, patience, "/memd.v1.MemoryService/Get", theirs, "json", []byte(real.in(foreign["MemoryService/Get"][0])), false); status != http.StatusOK {
		t.Errorf("the owner asks: %d %s", status, answer)
	}
}
