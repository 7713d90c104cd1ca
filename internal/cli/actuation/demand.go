package actuation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/status"

	"github.com/fealty-io/fealty/credential"
	"github.com/fealty-io/fealty/identity"
	"github.com/fealty-io/fealty/internal/cli/command"
	"github.com/fealty-io/fealty/internal/cli/term"
	"github.com/fealty-io/fealty/internal/document"
	"github.com/fealty-io/fealty/internal/errcode"
	"github.com/fealty-io/fealty/internal/errcode/render"
	"github.com/fealty-io/fealty/internal/platform/durable"
	"github.com/fealty-io/fealty/internal/platform/humanize"
	internalprovider "github.com/fealty-io/fealty/internal/provider"
	"github.com/fealty-io/fealty/internal/quarantine"
	"github.com/fealty-io/fealty/mesh"
	"github.com/fealty-io/fealty/operator"
)

// DemandShort says what the commands under fealty demand do.
const DemandShort = "state how many machines a tenant wants, and show what it has"

// Demands are the commands below fealty demand.
func Demands() []Command { return []Command{setDemand(), showDemand(), watchDemand()} }

// demands are the flags of a command that speaks to a shard as the operator of a tenant.
type demands struct {
	identity identityFlags
	shard    string
	tenant   string
}

func (f *demands) flags(flags *pflag.FlagSet) {
	flags.StringVar(&f.shard, "shard", "",
		"the shard, as HOST:PORT, or as NAME=HOST:PORT where no other one is believed there")
	f.identity.addAgent(flags)
	f.identity.addFiles(flags)
	flags.BoolVar(&f.identity.insecure, "insecure", false,
		"do without TLS, on a loopback address alone, with a shard that does too")
	flags.StringVar(&f.tenant, "tenant", "", "whose operator this is, with --insecure; else the certificate says so")
}

// open returns an operator of the tenant, which is closed by its caller.
func (f *demands) open(ctx context.Context, w World) (operator.Config, error) {
	name, target, named := strings.Cut(f.shard, "=")
	if !named {
		name, target = "", f.shard
	}
	if host, port, err := net.SplitHostPort(target); err != nil || host == "" || port == "" || named && name == "" {
		value := f.shard
		if value == "" {
			value = "missing"
		}
		return operator.Config{}, badValue("--shard", value, "it does not say where the shard is",
			"HOST:PORT, as in --listen of fealty shard, or NAME=HOST:PORT")
	}
	cfg := operator.Config{Target: target, Attempts: 1, Insecure: f.identity.insecure, Tenant: f.tenant, Log: w.Log, Now: w.Now}
	if !f.identity.insecure && f.tenant != "" {
		return cfg, badValue("--tenant", f.tenant, "the certificate says whose operator this is", "it with --insecure alone")
	}
	if f.identity.insecure && f.tenant == "" {
		return cfg, badValue("--tenant", "missing", "without TLS nothing says whose operator this is", "--tenant NAME")
	}
	if problem := document.NameProblem(f.tenant); f.tenant != "" && problem != "" {
		return cfg, badValue("--tenant", command.ShownArg(f.tenant), "it is no name", problem)
	}
	who, err := f.identity.open(ctx, w, identity.Operator, nil)
	if err != nil || who == nil {
		return cfg, err
	}
	cfg.Target, cfg.Source = "dns:///"+target, who.source
	if named {
		id, err := identity.New(who.id.Cluster(), identity.Shard, name)
		if err != nil {
			return cfg, badValue("--shard", f.shard, err.Error(), "NAME=HOST:PORT, as in shard/NAME of fealty member list")
		}
		cfg.Expect = credential.ExactID(id)
	}
	return cfg, nil
}

// worded words what operators meet.
func (f *demands) worded(err error, tenant string, timeout fmt.Stringer) error {
	if err == nil {
		return nil
	}
	if demand, ok := errors.AsType[*operator.DemandError](err); ok {
		at := []any{"tenant", demand.Tenant, "shard", demand.Shard, "problem", demand.Problem}
		switch {
		case errors.Is(err, operator.ErrHeld):
			return errcode.Wrap(err, errcode.DemandHeld, at...)
		case errors.Is(err, operator.ErrUnready):
			return errcode.Wrap(err, errcode.DemandUnready, at...)
		case errors.Is(err, operator.ErrOvertaken):
			return errcode.Wrap(err, errcode.Conflict, "what", "the demand of "+demand.Tenant, "problem",
				"another process stated it at the same time")
		}
		return errcode.Wrap(err, errcode.DemandRefused, at...)
	}
	if _, handshake := errors.AsType[*mesh.HandshakeError](err); handshake {
		return err
	}
	if _, ok := errcode.FromStatus(err); ok {
		return err // the other side says what happened
	}
	problem := err.Error()
	var told interface{ GRPCStatus() *status.Status }
	if errors.As(err, &told) {
		problem = told.GRPCStatus().Message()
	}
	switch {
	case errors.Is(err, internalprovider.ErrNotLoopback):
		return badValue("--shard", f.shard, "without TLS it is asked on a loopback address alone", "127.0.0.1:PORT, or a certificate")
	case errors.Is(err, operator.ErrDenied):
		return errcode.Wrap(err, errcode.Denied, "method", "the shard at "+f.shard, "identity", "operator/"+tenant, "reason", problem)
	case errors.Is(err, operator.ErrReplaced):
		return errcode.Wrap(err, errcode.Conflict, "what", "the demand of "+tenant, "problem",
			"an operator of it connected at the same time")
	case errors.Is(err, operator.ErrUnreachable):
		if unreached, ok := errors.AsType[*mesh.EndpointError](err); ok {
			return render.Unreachable(err, f.shard, unreached.Err)
		}
		return errcode.Wrap(err, errcode.Unreachable, "endpoint", f.shard, "problem", problem)
	case errors.Is(err, operator.ErrProtocol):
		return errcode.Wrap(err, errcode.PeerProtocol, "endpoint", f.shard, "problem", problem)
	case errors.Is(err, context.DeadlineExceeded):
		return errcode.Wrap(err, errcode.OutcomeUnknown, "method", "the shard at "+f.shard, "look",
			"fealty demand show tells what counts; it was waited for "+timeout.String())
	}
	return err
}

// demandRow, and what follows, are what programs read.
type demandRow struct {
	Profile  string `json:"profile"`
	Priority int32  `json:"priority"`
	Count    int    `json:"count"`
}

type demandProfile struct {
	Profile     string `json:"profile"`
	Wanted      int    `json:"wanted"`
	Quota       *int   `json:"quota"` // null: nothing bounds it
	Configuring int    `json:"configuring"`
	Configured  int    `json:"configured"`
	Draining    int    `json:"draining"`
	Failed      int    `json:"failed"`
}

type demandNotice struct {
	Provider  string      `json:"provider"`
	Machine   string      `json:"machine"`
	Profile   string      `json:"profile"`
	Until     term.Moment `json:"until"`
	Preempted bool        `json:"preempted"`
}

type demandData struct {
	Tenant   string          `json:"tenant"`
	Shard    string          `json:"shard"`
	Term     string          `json:"term"`
	Known    bool            `json:"known"`
	Operator bool            `json:"operator_connected"`
	Run      string          `json:"run"`
	Number   string          `json:"number"`
	Held     bool            `json:"held"`
	Demand   []demandRow     `json:"demand"`
	Profiles []demandProfile `json:"profiles"`
	Notices  []demandNotice  `json:"notices"`
	More     int             `json:"more_notices"`
}

func dataOf(tenant string, v operator.View) demandData {
	d := demandData{Tenant: tenant, Shard: v.Shard.Name, Term: command.Itoa(v.Shard.Term), Known: v.Known, Operator: v.Session,
		Run: command.Number(v.Run), Number: command.Number(v.Number), Held: v.Held, Demand: make([]demandRow, 0, len(v.Demand)),
		Profiles: make([]demandProfile, 0, len(v.Capacity)), Notices: make([]demandNotice, 0, len(v.Notices)), More: v.More}
	for _, row := range v.Demand {
		d.Demand = append(d.Demand, demandRow(row))
	}
	for _, c := range v.Capacity {
		p := demandProfile{c.Profile, c.Wanted, nil, c.Configuring, c.Configured, c.Draining, c.Failed}
		if c.Quota >= 0 {
			p.Quota = &c.Quota
		}
		d.Profiles = append(d.Profiles, p)
	}
	for _, n := range v.Notices {
		d.Notices = append(d.Notices, demandNotice{n.Provider, n.Machine, n.Profile, term.Moment(n.Until), n.Preempted})
	}
	return d
}

// showView shows a view to a person.
func showView(p *term.Page, tenant string, v operator.View) error {
	var f term.Facts
	f.Add("tenant", tenant)
	f.Add("shard", v.Shard.Name)
	connected := "not connected"
	if v.Session {
		connected = "connected"
	}
	f.Add("operator", connected)
	switch {
	case !v.Known:
		f.Paint("demand", term.Amber, "▲ none was taken since the shard started: it is given nothing, and nothing is taken from it")
	case len(v.Demand) == 0:
		f.Add("demand", "it wants nothing")
	default:
		f.Add("demand", rowsText(v.Demand))
	}
	if v.Held {
		f.Paint("held", term.Amber, "▲ what was stated last drops almost everything, and does not count unless it is stated again")
	}
	if err := p.Facts(f); err != nil {
		return err
	}
	if len(v.Capacity) > 0 {
		p.Heading("has")
		t := &term.Table{Columns: []term.Column{{Title: "PROFILE"}, {Title: "WANTED", Right: true}, {Title: "QUOTA", Right: true},
			{Title: "CONFIGURED", Right: true}, {Title: "CONFIGURING", Right: true}, {Title: "DRAINING", Right: true},
			{Title: "FAILED", Right: true}}}
		for _, c := range v.Capacity {
			quota := "-"
			if c.Quota >= 0 {
				quota = strconv.Itoa(c.Quota)
			}
			cells := []term.Cell{term.Txt(c.Profile), term.Txt(strconv.Itoa(c.Wanted)), term.Txt(quota)}
			for _, n := range []int{c.Configured, c.Configuring, c.Draining, c.Failed} {
				cells = append(cells, term.Txt(strconv.Itoa(n)))
			}
			t.Add(cells...)
		}
		if err := p.Table(t); err != nil {
			return err
		}
	}
	if len(v.Notices) == 0 {
		return nil
	}
	p.Heading("about to lose")
	t := &term.Table{Columns: []term.Column{{Title: "MACHINE"}, {Title: "PROFILE"}, {Title: "PROVIDER"}, {Title: "DRAINED AT"},
		{Title: "WHY"}}}
	for _, n := range v.Notices {
		why := "not wanted"
		if n.Preempted {
			why = "preempted"
		}
		t.Add(term.Txt(n.Machine), term.Txt(n.Profile), term.Txt(n.Provider), term.Txt(n.Until.UTC().Format(timeForm)), term.Txt(why))
	}
	if err := p.Table(t); err != nil {
		return err
	}
	if v.More > 0 {
		p.Line("and %d more", v.More)
	}
	return nil
}

const timeForm = "2006-01-02T15:04:05Z"

// rowsText are rows in one line.
func rowsText(rows []operator.Row) string {
	if len(rows) == 0 {
		return "nothing"
	}
	var words []string
	for _, row := range rows {
		if len(words) == maxWords {
			words = append(words, fmt.Sprintf("and %d more rows", len(rows)-maxWords))
			break
		}
		words = append(words, fmt.Sprintf("%d %s at priority %d", row.Count, row.Profile, row.Priority))
	}
	return strings.Join(words, ", ")
}

// maxWords is how many rows are named in one line.
const maxWords = 8

func showDemand() Command {
	f := new(demands)
	return Command{
		Use: "show", Short: "show what a tenant wants and has at a shard", Asks: true,
		Long: `Show what a tenant wants of a shard, what it has there, and which machines it is about to lose. It is asked as
the tenant's operator, and shows that tenant alone. It ends no session of the operator.

QUOTA is how many machines of the profile the tenant may have. While no demand was taken since the shard started, the
tenant keeps what it has, and is given nothing.`,
		Sample: `  fealty demand show --shard 10.0.4.7:7470 --agent /var/lib/fealty/agent
  fealty demand show --shard eu-1=10.0.4.7:7470 --agent /var/lib/fealty/agent -o json`,
		Flags: f.flags,
		Run: func(ctx context.Context, w World) error {
			cfg, err := f.open(ctx, w)
			if err != nil {
				return err
			}
			tenant, v, err := f.look(ctx, w, cfg)
			if err != nil {
				return err
			}
			return w.Print(dataOf(tenant, v), func(p *term.Page) error { return showView(p, tenant, v) })
		},
	}
}

// look returns what counts now.
func (f *demands) look(ctx context.Context, w World, cfg operator.Config) (tenant string, v operator.View, err error) {
	o, err := operator.Open(cfg)
	if err != nil {
		return "", v, f.worded(err, cfg.Tenant, w.Timeout)
	}
	defer o.Close()
	ctx, cancel := context.WithTimeout(ctx, w.Timeout)
	defer cancel()
	v, err = o.View(ctx)
	return o.Tenant(), v, f.worded(err, o.Tenant(), w.Timeout)
}

func watchDemand() Command {
	f := new(demands)
	return Command{
		Use: "watch", Short: "show what a tenant wants and has, each time that it changes, until interrupted", Asks: true, GoesOn: true,
		Long: `Show what fealty demand show does, and again each time that a cycle of the shard changed it, until interrupted.
With -o json each is one object. It ends no session of the operator, and ends when the shard does.`,
		Sample: "  fealty demand watch --shard 10.0.4.7:7470 --agent /var/lib/fealty/agent",
		Flags:  f.flags,
		Run: func(ctx context.Context, w World) error {
			cfg, err := f.open(ctx, w)
			if err != nil {
				return err
			}
			o, err := operator.Open(cfg)
			if err != nil {
				return f.worded(err, cfg.Tenant, w.Timeout)
			}
			defer o.Close()
			before := false
			for v, err := range o.Watch(ctx) {
				if err != nil {
					return f.worded(err, o.Tenant(), w.Timeout)
				}
				err = w.Print(dataOf(o.Tenant(), v), func(p *term.Page) error {
					if before {
						p.Line("")
					}
					return showView(p, o.Tenant(), v)
				})
				if err != nil {
					return err
				}
				before = true
			}
			return nil
		},
	}
}

// statement are the flags of fealty demand set.
type statement struct {
	demands
	want    []string
	nothing bool
	yes     bool
	dry     bool
}

func setDemand() Command {
	f := new(statement)
	return Command{
		Use: "set [FILE]", Short: "state all that a tenant wants of a shard", Asks: true, Args: command.AtMostOne("FILE"),
		Long: `State all that a tenant wants of a shard, in place of what was stated before: what is not in it is not wanted any
more. It returns once the shard took it. The demand counts until another is stated, or the shard is started anew: then the
tenant keeps what it has and is given nothing until it is stated again. A program that stands by is an operator, which the
package operator is for.

Either --want says it, once for each profile and priority, or a file, which is YAML: a list under demand, each with
profile and count, and with priority where that is not 0. A higher priority is given machines first, and takes them from
lower ones of other tenants.

It asks before a demand that takes machines away, or that an operator is cut off by: one that is connected loses its
session, and what it states does not count any more until it is started again. A demand that drops almost everything is
held by the shard until it comes three times; with --yes it is stated three times.`,
		Sample: `  fealty demand set --want web=3 --want batch=20@-5 --shard 10.0.4.7:7470 --agent /var/lib/fealty/agent
  fealty demand set demand.yaml --shard 10.0.4.7:7470 --agent /var/lib/fealty/agent --dry-run
  fealty demand set --nothing --shard 10.0.4.7:7470 --agent /var/lib/fealty/agent --yes`,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringArrayVar(&f.want, "want", nil,
				"how many machines of a profile, as PROFILE=N or PROFILE=N@PRIORITY; once for each")
			flags.BoolVar(&f.nothing, "nothing", false, "the tenant wants no machines any more")
			f.flags(flags)
			flags.BoolVar(&f.yes, "yes", false, "do not ask")
			command.DryRun(flags, &f.dry)
		},
		Run: f.run,
	}
}

func (f *statement) run(ctx context.Context, w World) error {
	rows, err := f.rows(w)
	if err != nil {
		return err
	}
	cfg, err := f.open(ctx, w)
	if err != nil {
		return err
	}
	tenant, before, err := f.look(ctx, w, cfg)
	if err != nil {
		return err
	}
	said := fmt.Sprintf("%s wants of shard %s: %s", tenant, before.Shard.Name, rowsText(rows))
	if f.dry {
		w.Planned(said)
		for _, risk := range risks(tenant, before, rows) {
			w.Say("%s", risk)
		}
		return f.print(w, tenant, before, rows)
	}
	if risk := strings.Join(risks(tenant, before, rows), "; "); risk != "" {
		if err := w.Confirm(ctx, "fealty demand set", risk, f.yes); err != nil {
			return err
		}
	}
	cfg.RunNumber = max(before.Run+1, uint64(w.Now().UnixMilli()))
	if before.Run == math.MaxUint64 {
		return errcode.New(errcode.DemandRefused, "tenant", tenant, "shard", before.Shard.Name, "problem",
			"the run of its operator has the highest number that there is")
	}
	if err := f.state(ctx, w, cfg, rows); err != nil {
		return f.worded(err, tenant, w.Timeout)
	}
	if err := f.print(w, tenant, before, rows); err != nil {
		return err
	}
	w.Say("%s", said)
	return nil
}

// attempts is how many sessions in a row may not begin. One that begins may be ended by an operator that comes back,
// until that has heard that it was overtaken.
const attempts = 3

// state states rows, and states them again if they are held and somebody consented to that.
func (f *statement) state(ctx context.Context, w World, cfg operator.Config, rows []operator.Row) error {
	cfg.Attempts = attempts
	o, err := operator.Open(cfg)
	if err != nil {
		return err
	}
	running := make(chan error, 1)
	go func() { running <- o.Run(ctx) }() // ends with o
	defer func() { o.Close(); <-running }()
	set := func() error {
		ctx, cancel := context.WithTimeout(ctx, w.Timeout)
		defer cancel()
		return o.Set(ctx, rows)
	}
	err = set()
	if !errors.Is(err, operator.ErrHeld) {
		return err
	}
	if f.yes {
		for more := quarantine.Confirmations - 1; more > 0 && errors.Is(err, operator.ErrHeld); more-- {
			err = set()
		}
	}
	return err
}

// print prints a demand that was stated, or would be.
func (f *statement) print(w World, tenant string, v operator.View, rows []operator.Row) error {
	d := struct {
		Tenant string      `json:"tenant"`
		Shard  string      `json:"shard"`
		Demand []demandRow `json:"demand"`
		Before []demandRow `json:"before"`
	}{tenant, v.Shard.Name, []demandRow{}, []demandRow{}}
	for _, row := range rows {
		d.Demand = append(d.Demand, demandRow(row))
	}
	for _, row := range v.Demand {
		d.Before = append(d.Before, demandRow(row))
	}
	return w.Print(d, func(p *term.Page) error {
		var facts term.Facts
		facts.Add("tenant", tenant)
		facts.Add("shard", v.Shard.Name)
		facts.Add("demand", rowsText(rows))
		was := rowsText(v.Demand)
		if !v.Known {
			was = "nobody knows, since the shard started"
		}
		facts.Add("before", was)
		return p.Facts(facts)
	})
}

// risks says what a demand takes away.
func risks(tenant string, before operator.View, rows []operator.Row) (out []string) {
	if before.Session {
		out = append(out, fmt.Sprintf("an operator of %s is connected to shard %s: what it states does not count any more until it "+
			"is started again", tenant, before.Shard.Name))
	}
	wanted := make(map[string]int)
	for _, row := range rows {
		wanted[row.Profile] += row.Count
	}
	for _, c := range before.Capacity {
		if less := c.Configured + c.Configuring - wanted[c.Profile]; less > 0 {
			out = append(out, fmt.Sprintf("%s of profile %s %s taken back, a part of them in each cycle",
				humanize.Plural(less, "machine", "machines"), c.Profile, map[bool]string{true: "is", false: "are"}[less == 1]))
		}
	}
	return out
}

// maxDemand bounds a file of demand, in bytes.
const maxDemand = 1 << 20

var demandFormat = document.Format{
	Noun: "a file of demand", Start: "begin it with demand:", TooLong: "shorten it", Bytes: maxDemand,
	Documents: 1, Depth: 4, Fields: 8, Items: operator.MaxRows, Marks: 256 << 10, Problems: 20,
}

// rows returns the demand that the flags or the file say.
func (f *statement) rows(w World) (rows []operator.Row, err error) {
	ways := 0
	for _, given := range []bool{len(f.want) > 0, f.nothing, len(w.Args) > 0} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		value := "missing"
		if ways > 1 {
			value = "given beside another way to say it"
		}
		return nil, badValue("--want", value, "a demand is stated whole, in one place", "one of --want PROFILE=N, FILE and --nothing")
	}
	from := "--want"
	switch {
	case len(w.Args) > 0:
		from = w.Args[0]
		rows, err = readDemand(w, w.Args[0])
	default:
		rows, err = f.wanted()
	}
	if err != nil {
		return nil, err
	}
	if wrong, ok := errors.AsType[*operator.InvalidError](operator.Check(rows)); ok {
		value := "the demand"
		if wrong.Row >= 0 {
			value = fmt.Sprintf("row %d, %d %s", wrong.Row+1, rows[wrong.Row].Count, command.ShownArg(rows[wrong.Row].Profile))
		}
		return nil, errcode.Wrap(wrong, errcode.BadValue, "name", from, "value", value, "problem",
			"its "+wrong.Field+" "+wrong.Problem, "want", "a demand that can be")
	}
	slices.SortFunc(rows, func(a, b operator.Row) int {
		if c := strings.Compare(a.Profile, b.Profile); c != 0 {
			return c
		}
		return int(int64(b.Priority) - int64(a.Priority))
	})
	return rows, nil
}

// wanted reads the flags.
func (f *statement) wanted() (rows []operator.Row, err error) {
	for _, text := range f.want {
		profile, number, ok := strings.Cut(text, "=")
		number, priority, has := strings.Cut(number, "@")
		n, err := strconv.Atoi(number)
		p := int64(0)
		if has && err == nil {
			p, err = strconv.ParseInt(priority, 10, 32)
		}
		if !ok || profile == "" || err != nil {
			return nil, badValue("--want", command.ShownArg(text), "it does not say how many machines of which profile",
				"PROFILE=N or PROFILE=N@PRIORITY, such as web=3@5")
		}
		rows = append(rows, operator.Row{Profile: profile, Priority: int32(p), Count: n})
	}
	return rows, nil
}

// readDemand reads a file of demand.
func readDemand(w World, name string) (rows []operator.Row, err error) {
	text, err := durable.OS().ReadFile(w.Within(name), maxDemand)
	if err != nil {
		return nil, errcode.Wrap(err, errcode.FileMissing, "purpose", "file of demand", "file", name, "cause", render.Bare(err).Error())
	}
	roots, problems := demandFormat.Read(text)
	if problems == nil {
		d := document.NewDecoder(demandFormat.Problems)
		d.Object(roots[0], "", document.Part{Name: "demand", Required: true, Read: func(n *document.Node, path string) {
			d.List(n, path, operator.MaxRows, func(n *document.Node, path string) { rows = append(rows, readRow(d, n, path)) })
		}})
		problems = d.Problems
	}
	if len(problems) == 0 {
		return rows, nil
	}
	var all []string
	for _, p := range problems {
		all = append(all, fmt.Sprintf("line %d: %s", p.Line, command.JoinText(p.Field, p.What+", "+p.Do)))
	}
	return nil, errcode.New(errcode.BadSetting, "from", name, "key", "a row", "problem", strings.Join(all, "; "), "page",
		"demand set --help")
}

func readRow(d *document.Decoder, n *document.Node, path string) (row operator.Row) {
	d.Object(n, path,
		document.Part{Name: "profile", Required: true, Read: func(n *document.Node, path string) { row.Profile, _ = d.Text(n, path) }},
		document.Part{Name: "count", Required: true, Read: func(n *document.Node, path string) {
			row.Count = d.Number(n, path, 1, operator.MaxMachines)
		}},
		document.Part{Name: "priority", Read: func(n *document.Node, path string) {
			row.Priority = int32(d.Number(n, path, math.MinInt32, math.MaxInt32))
		}})
	return row
}
