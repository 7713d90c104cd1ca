package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	fealtyv1 "github.com/fealty-io/fealty/api/fealty/v1"
	"github.com/fealty-io/fealty/fence"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/authz"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/coordinatortest"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/proof"
	"github.com/fealty-io/fealty/internal/snapshot"
	"github.com/fealty-io/fealty/internal/store"
	"github.com/fealty-io/fealty/internal/trust"
)

// Clients make a change again at the next coordinator when one says that it is in
// recovery mode. So that has to mean that nothing was done, whatever is called: one
// that lost its readiness when the change was in the store already says something else.
//
// Each row is a call that can change something. Each row says what a second one would
// do, and why that matters or does not.
func TestNoChangeIsMadeTwice(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const gone = "nothing: it ends with its stream, and streams go to one coordinator"
	const agents = "asked of an agent, on its own socket"
	const providers = "asked of a provider: each attempt has a token of its own, and the same target the same operation"
	prepared := func(d *coordinatortest.Desk) *fealtyv1.CommitReseedRequest {
		p, err := coordinatortest.Served[fealtyv1.ReseedServiceServer](
			d.C.Parts().Moves.Manifests.RegisterServices).PrepareReseed(
			ctx,
			&fealtyv1.PrepareReseedRequest{})
		coordinatortest.WantOnly(t, "prepare", err, "")
		return &fealtyv1.CommitReseedRequest{Change: p.GetChange(),
			Reason: "test", Signatures: coordinatortest.SignChange(t, p.GetChange(), d.Signer)}
	}
	const gold = "kind: qos\nname: gold\npriority: 1\n"
	rows := []struct {
		method string
		twice  string                                     // what a second one would do
		first  func(d *coordinatortest.Desk) func() error // prepares the first one; nil: clients never make it again elsewhere
	}{
		{"ManifestService.SetManifest", "refused: it names the head that it follows",
			func(d *coordinatortest.Desk) func() error {
				return func() error {
					_, err := d.C.Parts().Moves.Manifests.Set(ctx,
						d.Request(d.Manifest(coordinatortest.PoolEntries+coordinatortest.CoordinatorEntry(t, 2))),
						true)
					return err
				}
			}},
		{"ManifestService.FirstSet", "refused: there is a history by then", nil},
		{"ManifestService.PreviewManifest", "nothing, as the first", nil},
		{"ReseedService.PrepareReseed", "one seed more that waits in a memory, for an hour",
			func(d *coordinatortest.Desk) func() error {
				return func() error {
					_, err := coordinatortest.Served[fealtyv1.ReseedServiceServer](
						d.C.Parts().Moves.Manifests.RegisterServices).PrepareReseed(ctx,
						&fealtyv1.PrepareReseedRequest{})
					return err
				}
			}},
		{"ReseedService.CommitReseed", "refused: the seed is in the memory of one coordinator, and follows one head",
			func(d *coordinatortest.Desk) func() error {
				req := prepared(d)
				return func() error {
					_, err := coordinatortest.Served[fealtyv1.ReseedServiceServer](
						d.C.Parts().Moves.Manifests.RegisterServices).CommitReseed(ctx, req)
					return err
				}
			}},
		{"TrustService.RotateMeshKey", "one authority epoch more, in which all members renew",
			func(d *coordinatortest.Desk) func() error {
				return func() error {
					_, err := coordinatortest.TrustService(d).RotateMeshKey(ctx, &fealtyv1.RotateMeshKeyRequest{})
					return err
				}
			}},
		{"TrustService.RotateConfigKey", "refused while the first goes on, and one key more after it",
			func(d *coordinatortest.Desk) func() error {
				return func() error {
					_, err := coordinatortest.TrustService(d).RotateConfigKey(ctx, &fealtyv1.RotateConfigKeyRequest{Reason: "test"})
					return err
				}
			}},
		{"TrustService.Revoke", "nothing: it is revoked for good", func(d *coordinatortest.Desk) func() error {
			return func() error {
				_, err := coordinatortest.TrustService(d).Revoke(ctx,
					&fealtyv1.RevokeRequest{Kind: string(snapshot.RevokedRole), Name: "data/a/ingress", Reason: "test"})
				return err
			}
		}},
		{"TrustService.ApplyEmergency", "nothing: it is in force", func(d *coordinatortest.Desk) func() error {
			raw := coordinatortest.Statement(d, 1, func(e *trust.Emergency) { e.Keys = []identity.KeyID{{7}} })
			return func() error { _, err := coordinatortest.ApplyEmergency(d, raw, false); return err }
		}},
		{"LeaderService.TransferLeader", "the next leader is sent away too",
			func(d *coordinatortest.Desk) func() error {
				ledByAnother(d)
				return func() error {
					// Nobody takes over here: it is not waited for once leadership is handed over.
					waits, cancel := context.WithCancel(ctx)
					defer cancel()
					now := d.Store.Version(election.TermKey)
					go func() {
						for waits.Err() == nil && d.Store.Version(election.TermKey) == now {
							time.Sleep(time.Millisecond)
						}
						cancel()
					}()
					_, err := coordinatortest.Served[fealtyv1.LeaderServiceServer](
						d.C.Parts().Election.RegisterServices).TransferLeader(waits,
						&fealtyv1.TransferLeaderRequest{})
					return err
				}
			}},
		{"TokenService.CreateToken", "another token, and the first one nobody knows",
			func(d *coordinatortest.Desk) func() error {
				return func() error {
					_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](
						d.C.Parts().Admission.RegisterServices).CreateToken(
						ctx,
						&fealtyv1.CreateTokenRequest{Entry: "pool"})
					return err
				}
			}},
		{"TokenService.RevokeToken", "nothing: it is revoked for good", func(d *coordinatortest.Desk) func() error {
			id := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool"}).ID
			return func() error {
				_, err := coordinatortest.Served[fealtyv1.TokenServiceServer](
					d.C.Parts().Admission.RegisterServices).RevokeToken(
					ctx,
					&fealtyv1.RevokeTokenRequest{Id: id})
				return err
			}
		}},
		{"ConfigService.PutConfig", "nothing, or what somebody put since is undone",
			func(d *coordinatortest.Desk) func() error {
				return func() error { _, err := coordinatortest.PutAt(d, gold); return err }
			}},
		{"ConfigService.DeleteConfig", "not found, or what somebody put since goes too",
			func(d *coordinatortest.Desk) func() error {
				coordinatortest.MustPut(d, gold)
				return func() error {
					_, err := coordinatortest.ConfigAt(d).DeleteConfig(ctx,
						&fealtyv1.DeleteConfigRequest{Records: []*fealtyv1.ConfigRecord{{Kind: "qos", Name: "gold"}}})
					return err
				}
			}},
		{"MemberService.DrainMember", "nothing, or it drains although somebody ended that since",
			func(d *coordinatortest.Desk) func() error {
				d.Joined("a")
				return func() error {
					_, err := d.Members().DrainMember(ctx, &fealtyv1.DrainMemberRequest{Kind: "data", Name: "a"})
					return err
				}
			}},
		{"MemberService.UndrainMember", "nothing, or a drain that somebody asked for since ends",
			func(d *coordinatortest.Desk) func() error {
				d.Joined("a")
				coordinatortest.DrainAt(d, t, "a")
				return func() error {
					_, err := d.Members().UndrainMember(ctx, &fealtyv1.UndrainMemberRequest{Kind: "data", Name: "a"})
					return err
				}
			}},
		{"MemberService.RemoveMember", "not found, or who joined under the name since is removed",
			func(d *coordinatortest.Desk) func() error {
				d.Joined("a")
				return func() error {
					_, err := d.Members().RemoveMember(ctx,
						&fealtyv1.RemoveMemberRequest{Kind: "data", Name: "a", Force: true, Reason: "test"})
					return err
				}
			}},
		{"MemberService.ReplaceMember", "nothing, or who took the place since is replaced",
			func(d *coordinatortest.Desk) func() error {
				d.Joined("a")
				return func() error {
					_, err := d.Members().ReplaceMember(ctx, &fealtyv1.ReplaceMemberRequest{Kind: "data", Name: "a"})
					return err
				}
			}},
		{"MemberService.BanMember", "the same ban, or again one that somebody lifted since",
			func(d *coordinatortest.Desk) func() error {
				d.Joined("a")
				return func() error {
					_, err := d.Members().BanMember(ctx,
						&fealtyv1.BanMemberRequest{Kind: "data", Name: "a", Reason: "test"})
					return err
				}
			}},
		{"MemberService.UnbanMember", "not found, or a ban that somebody made since is lifted",
			func(d *coordinatortest.Desk) func() error {
				d.Joined("a")
				coordinatortest.BanAt(d, t, identity.Data, "a")
				return func() error {
					_, err := d.Members().UnbanMember(ctx, &fealtyv1.UnbanMemberRequest{Kind: "data", Name: "a"})
					return err
				}
			}},
		{"AdmissionService.Join", "the same member: it proves the same key",
			func(d *coordinatortest.Desk) func() error {
				tok := d.Token(&fealtyv1.CreateTokenRequest{Entry: "pool", Name: "a"})
				return func() error { return d.Machine().Join(identity.Data, proof.NewTokenProver(tok)) }
			}},
		{"AdmissionService.Renew", "another certificate over the same key", func(d *coordinatortest.Desk) func() error {
			m := d.Joined("a")
			return m.Renew
		}},
		{"AdmissionService.Leave", "not found", func(d *coordinatortest.Desk) func() error {
			m := d.Joined("a")
			peer := identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)}
			return func() error {
				_, err := coordinatortest.Served[fealtyv1.AdmissionServiceServer](
					d.C.Parts().Admission.RegisterServices).Leave(
					identity.NewContext(ctx, peer),
					&fealtyv1.LeaveRequest{})
				return err
			}
		}},
		{"DomainService.AssignDomain", "nothing, or what somebody assigned since is undone",
			func(d *coordinatortest.Desk) func() error {
				d.Joined("a")
				return func() error {
					_, err := domainService(d).AssignDomain(ctx, &fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a"})
					return err
				}
			}},
		{"DomainService.UnassignDomain", "nothing, or what somebody assigned since is undone",
			func(d *coordinatortest.Desk) func() error {
				d.Joined("a")
				_, err := domainService(d).AssignDomain(ctx, &fealtyv1.AssignDomainRequest{Name: "eu", To: "data/a"})
				coordinatortest.WantOnlyNil(t, err)
				return func() error {
					_, err := domainService(d).UnassignDomain(ctx, &fealtyv1.UnassignDomainRequest{Name: "eu", Force: true,
						Reason: "test"})
					return err
				}
			}},
		{"DomainService.ReleaseDomain", "nothing: the ownership is over", nil},
		{"DomainService.PollAssignments", gone, nil},
		{"RegistryService.PutQuota", "nothing, or what somebody put since is undone",
			func(d *coordinatortest.Desk) func() error {
				return func() error {
					_, err := registryService(d).PutQuota(ctx, &fealtyv1.PutQuotaRequest{Tenant: "acme", Profile: "web",
						Machines: 3})
					return err
				}
			}},
		{"RegistryService.DeleteQuota", "nothing is there to delete, or what somebody put since",
			func(d *coordinatortest.Desk) func() error {
				_, err := registryService(d).PutQuota(ctx, &fealtyv1.PutQuotaRequest{Tenant: "acme", Profile: "web"})
				coordinatortest.WantOnlyNil(t, err)
				return func() error {
					_, err := registryService(d).DeleteQuota(ctx, &fealtyv1.DeleteQuotaRequest{Tenant: "acme",
						Profile: "web"})
					return err
				}
			}},
		{"RegistryService.PutProvider", "nothing, or what somebody put since is undone",
			func(d *coordinatortest.Desk) func() error {
				return func() error {
					_, err := registryService(d).PutProvider(ctx, &fealtyv1.PutProviderRequest{Name: "p", Address: "a:1"})
					return err
				}
			}},
		{"RegistryService.DeleteProvider", "nothing is there to delete, or what somebody put since",
			func(d *coordinatortest.Desk) func() error {
				_, err := registryService(d).PutProvider(ctx, &fealtyv1.PutProviderRequest{Name: "p", Address: "a:1"})
				coordinatortest.WantOnlyNil(t, err)
				return func() error {
					_, err := registryService(d).DeleteProvider(ctx, &fealtyv1.DeleteProviderRequest{Name: "p"})
					return err
				}
			}},
		{"RegistryService.PollPlan", gone, nil},
		{"JournalService.KeepJournal", "nothing: the entries are there, and stay",
			func(d *coordinatortest.Desk) func() error {
				m := d.Joined("a")
				peer := identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)}
				chain := fmt.Sprintf("%s/%020d-00000001", auditlog.WriterOf(m.ID.String()), d.Clock().UnixNano())
				entry := fmt.Appendf(nil, `{"at":"2026-05-04T08:00:00Z","actor":%q,"action":"journal.opened","target":""}`,
					m.ID.String())
				return func() error {
					_, err := coordinatortest.Served[fealtyv1.JournalServiceServer](
						d.C.Parts().Fencing.Journals.RegisterServices).KeepJournal(identity.NewContext(ctx, peer),
						&fealtyv1.KeepJournalRequest{Chain: chain, First: 1, Entries: [][]byte{entry}})
					return err
				}
			}},
		{"InstructionService.Instruct", "nothing: it is the same one by its id", nil},
		{"InstructionService.AcknowledgeInstruction", "nothing: it ended", nil},
		{"InstructionService.PollInstructions", gone, nil},
		{"ShardReportService.ReportShard", "nothing: it has the number of the report before", nil},
		{"WorkloadService.CertifyWorkloads", "another certificate: none is recorded", nil},
		{"WorkloadService.SignTokens", "another token: none is recorded", nil},
		{"WorkloadService.TokenKeys", "the same keys", nil},
		{"GrantService.Grant", "a newer grant", func(d *coordinatortest.Desk) func() error {
			m := d.Joined("a")
			peer := identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)}
			return func() error {
				_, err := coordinatortest.Served[fealtyv1.GrantServiceServer](d.C.Parts().Fencing.Grants.RegisterServices).Grant(
					identity.NewContext(ctx, peer),
					&fealtyv1.GrantRequest{Name: "a", Incarnation: fence.NewIncarnation().String()})
				return err
			}
		}},
		{"IncidentService.ReportFenced", "nothing: it is the same process", func(d *coordinatortest.Desk) func() error {
			m := d.Joined("a")
			peer := identity.Peer{ID: m.ID, Leaf: m.Leaf, Key: identity.KeyOf(m.Leaf)}
			return func() error {
				_, err := coordinatortest.Served[fealtyv1.IncidentServiceServer](
					d.C.Parts().Fencing.Incidents.RegisterServices).ReportFenced(identity.NewContext(ctx, peer),
					&fealtyv1.ReportFencedRequest{Name: "a", Incarnation: fence.NewIncarnation().String(), Epoch: 1})
				return err
			}
		}},
		{"RecoveryService.Recover",
			"refused once it is in force, one epoch more before that: fealty recover stops at this answer", nil},
		{"BackupService.CreateBackup", "another backup", nil},
		{"BackupService.RecordDrill", "nothing, but a later time of the same shares", nil},
		{"RestoreService.PresentTrust", "nothing: what it says is in force", nil},
		{"VerifyService.Verify", "nothing, as the first", nil},
		{"PeerService.Recover", gone, nil},
		{"PeerService.Prepare", gone, nil},
		{"AgentService.Connect", gone, nil},
		{"LiveService.NoteStreams", "nothing: the same processes are the newest", nil},
		{"CoordinatorService.ForgetCoordinator", "not found: it said nothing since", nil},
		{"ManifestService.ForgetKeeperKey", "not found: no copy of that key is left", nil},
		{"SnapshotService.Poll", gone, nil},
		{"ProviderService.PromiseDomain", providers, nil},
		{"ProviderService.CreateMachine", providers, nil},
		{"ProviderService.ConfigureMachine", providers, nil},
		{"ProviderService.DrainMachine", providers, nil},
		{"ProviderService.DeleteMachine", providers, nil},
		{"ShardService.WatchDemand", "asked of a shard: it reads", nil},
		{"ShardService.Session", "asked of a shard: a roll-up that was reported changes nothing", nil},
		{"LocalWorkloadService.CheckWorkload", agents, nil},
		{"NodeService.LeaveCluster", agents, nil},
		{"NodeService.ApplyNodeEmergency", agents, nil},
		{"NodeService.RenewIdentity", agents, nil},
		{"LocalConfigService.WatchScope", agents, nil},
		{"LocalConfigService.ReportVerdict", agents, nil},
		{"LocalConfigService.PermitAction", agents, nil},
	}
	var listed []string
	for _, row := range rows {
		listed = append(listed, row.method)
		if row.twice == "" {
			t.Errorf("%s: nobody said what a second one would do", row.method)
		}
		if row.first == nil {
			continue
		}
		t.Run(row.method, func(t *testing.T) {
			d := coordinatortest.PoolDesk(t)
			call := row.first(d)
			lost := loseAfterChange(d)
			err := call()
			switch {
			case !*lost:
				t.Fatalf("nothing was written, so nothing is shown: %v", err)
			case err != nil && !errors.Is(err, errcode.DoneNotInForce):
				t.Errorf("the change is in the store, and the answer does not say so: %v", err)
			case errors.Is(err, errcode.RecoveryMode):
				t.Errorf("an answer with two codes: %v", err)
			}
		})
	}
	// Everything in the API that can change something has a row.
	services, err := authz.Services(authz.APIServices()...)
	coordinatortest.WantOnly(t, "services", err, "")
	for _, s := range services {
		for i := range s.Methods().Len() {
			name := string(s.Methods().Get(i).Name())
			if strings.HasPrefix(name, "Get") || strings.HasPrefix(name, "List") {
				continue // as clients take it
			}
			if row := string(s.Name()) + "." + name; !slices.Contains(listed, row) {
				t.Errorf("%s has no row", row)
			}
		}
	}
}

// loseAfterChange has the coordinator lose its readiness between its next change, when
// that is in the store, and the answer. It tells whether that was so.
func loseAfterChange(d *coordinatortest.Desk) *bool {
	lost := new(bool)
	d.Store.Follow(func(tx store.Tx) {
		if *lost || !slices.ContainsFunc(tx.Put, func(w store.Write) bool {
			return w.Key == history.HeadKey || strings.HasPrefix(w.Key, auditlog.Prefix) ||
				strings.HasPrefix(w.Key, record.MemberPrefix)
		}) {
			return
		}
		*lost = true
		d.Faults.Fail("adopt.begin", coordinatortest.ErrCrash)
		d.C.Parts().Head.Put(authority.Recovering(d.State(), coordinatortest.ErrCrash), time.Time{})
	})
	return lost
}

// ledByAnother has somebody else lead, who can hand over to the desk's coordinator.
func ledByAnother(d *coordinatortest.Desk) {
	d.T.Helper()
	w, err := d.State().Records.Seal(election.TermKey, election.Record{Replica: "ed25519:other", Name: "coordinator-9",
		Nonce: record.NewID()})
	if err != nil {
		d.T.Fatal(err)
	}
	d.Store.Write(election.TermKey, w.Value)
	if err := d.C.Parts().Announcement.Announce(context.Background(), false); err != nil {
		d.T.Fatal(err)
	}
}

func registryService(d *coordinatortest.Desk) fealtyv1.RegistryServiceServer {
	return coordinatortest.Served[fealtyv1.RegistryServiceServer](d.C.Parts().Fencing.Registry.RegisterServices)
}

func domainService(d *coordinatortest.Desk) fealtyv1.DomainServiceServer {
	return coordinatortest.Served[fealtyv1.DomainServiceServer](d.C.Parts().Fencing.Domains.RegisterServices)
}
