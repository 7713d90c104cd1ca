package coordinator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fealty-io/fealty/internal/auditlog"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/domains"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/grants"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/incidents"
	"github.com/fealty-io/fealty/internal/coordinator/actuation/registry"
	"github.com/fealty-io/fealty/internal/coordinator/admission"
	"github.com/fealty-io/fealty/internal/coordinator/authority"
	"github.com/fealty-io/fealty/internal/coordinator/authority/reseal"
	"github.com/fealty-io/fealty/internal/coordinator/bundle"
	"github.com/fealty-io/fealty/internal/coordinator/desired"
	"github.com/fealty-io/fealty/internal/coordinator/election"
	"github.com/fealty-io/fealty/internal/coordinator/peer"
	"github.com/fealty-io/fealty/internal/coordinator/publication"
	"github.com/fealty-io/fealty/internal/coordinator/record"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/backup"
	"github.com/fealty-io/fealty/internal/coordinator/recovery/shares"
	"github.com/fealty-io/fealty/internal/coordinator/trust"
	"github.com/fealty-io/fealty/internal/history"
	"github.com/fealty-io/fealty/internal/instruction"
	"github.com/fealty-io/fealty/internal/manifest"
	"github.com/fealty-io/fealty/internal/store/health"
	"github.com/fealty-io/fealty/test/goldentest"
)

// storedTypes are the types that coordinators keep as JSON, in the store or beside it.
// Their names are those of the files below testdata/records.
var storedTypes = map[string]any{
	"audit-checkpoint": auditlog.Checkpoint{},
	"audit-entry":      auditlog.Entry{},
	"ban":              record.Ban{},
	"backup-last":      backup.LastBackup{},
	"config-state":     desired.State{},
	"domain":           domains.Record{},
	"drill-last":       backup.LastDrill{},
	"entry-count":      record.EntryCount{},
	"freeze":           reseal.RecordLock{},
	"grant":            grants.Record{},
	"head-seen":        history.SeenHead{},
	"header":           publication.HeaderRecord{},
	"incident":         incidents.Record{},
	"instruction":      instruction.Order{},
	"instruction-end":  instruction.Ended{},
	"leader":           election.Record{},
	"leader-beat":      election.Beat{},
	"ledger":           reseal.Ledger{},
	"member":           record.Member{},
	"publication":      publication.Record{},
	"registry":         registry.Record{},
	"replica":          peer.Record{},
	"replica-signed":   peer.Signed{},
	"restore-gap":      authority.RestoreWindow{},
	"rollout":          trust.RolloutRecord{},
	"share-set":        shares.SetRecord{},
	"store-seen":       health.Record{},
	"token":            admission.Token{},
	"token-use":        admission.TokenUse{},
	"trust-state":      bundle.State{},
	"unban":            record.Unban{},
}

// Coordinators of several releases read and write one store: how a record is written
// changes only where somebody means it. Each stored type has two files, of a value that
// has every field set and of the zero value, which shows what is left out.
func TestRecordsAreWrittenAsBefore(t *testing.T) {
	files := make(map[string]string)
	for name, zero := range storedTypes {
		typ := reflect.TypeOf(zero)
		full := reflect.New(typ)
		new(filler).fill(full.Elem())
		nothing, err := json.MarshalIndent(zero, "", "\t")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		text, err := json.MarshalIndent(full.Interface(), "", "\t")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		files[name+".json"], files[name+".zero.json"] = string(text)+"\n", string(nothing)+"\n"

		read := reflect.New(typ)
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(read.Interface()); err != nil {
			t.Errorf("%s is not read back: %v", name, err)
			continue
		}
		again, err := json.MarshalIndent(read.Interface(), "", "\t")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.Equal(text, again) {
			t.Errorf("%s: what is read back is written as\n%s\nnot as\n%s", name, again, text)
		}
	}
	goldentest.Folder(t, "testdata/records", files)
}

// filler sets fields, each to a value that no other field has, but for booleans: those
// are true.
type filler struct{ n int }

var fillStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// fill sets v and everything in it that is written as JSON.
func (f *filler) fill(v reflect.Value) {
	f.n++
	var special any // not of an embedded struct, whose name may be unexported
	if v.CanInterface() {
		special = v.Addr().Interface()
	}
	switch at := special.(type) {
	case *time.Time:
		*at = fillStart.Add(time.Duration(f.n) * time.Second)
		return
	case *json.RawMessage:
		*at = fmt.Appendf(nil, `{"raw":%d}`, f.n)
		return
	case *manifest.Key:
		if err := at.UnmarshalText([]byte("ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")); err != nil {
			panic("the public key of test 1 of RFC 8032, section 7.1, is a key: " + err.Error())
		}
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(fmt.Sprintf("text-%d", f.n))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(f.n))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.n))
	case reflect.Float64:
		v.SetFloat(float64(f.n) + 0.25)
	case reflect.Array:
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(key)
			f.fill(value)
			v.SetMapIndex(key, value)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if (field.IsExported() || field.Anonymous) && field.Tag.Get("json") != "-" {
				f.fill(v.Field(i))
			}
		}
	default:
		panic(fmt.Sprintf("a record has a %s, which JSON does not", v.Type()))
	}
}

// readElsewhere are types that are read from JSON and are no records, with the reason.
var readElsewhere = map[string]string{
	"T": "what the reader of all records is told to read",
}

// Every type that is read as a record, by one of the readers of records or by
// json.Unmarshal, is among storedTypes: what is written is read again, or it would not
// be written.
func TestStoredTypesAreComplete(t *testing.T) {
	known := make(map[string]bool)
	for _, v := range storedTypes {
		known[reflect.TypeOf(v).Name()] = true
	}
	read := make(map[string]bool)
	set := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || name != "." && strings.HasSuffix(name, "test")):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			for _, typ := range typesRead(decl) {
				read[typ.name] = true
				if typ.name == "" {
					t.Errorf("%s: this test does not see which type is read", set.Position(typ.at))
				} else if !known[typ.name] && readElsewhere[typ.name] == "" {
					t.Errorf("%s: %s is read, and is not among storedTypes", set.Position(typ.at), typ.name)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(read) < 15 {
		t.Errorf("%d types are read: this test looks at the wrong names", len(read))
	}
}

// typeRead is a type, by its name without a package, that is read at a place; "" if its
// name was not found.
type typeRead struct {
	name string
	at   token.Pos
}

// typesRead returns which types a declaration reads: get[T], list[T] and open[T], and
// json.Unmarshal into a variable that the declaration gives its type.
func typesRead(decl ast.Decl) (out []typeRead) {
	vars := make(map[string]string) // types of variables, by their names
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for _, name := range n.Names {
				vars[name.Name] = lastName(n.Type)
			}
		case *ast.Field:
			for _, name := range n.Names {
				vars[name.Name] = lastName(n.Type)
			}
		}
		return true
	})
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IndexExpr:
			if slices.Contains([]string{"get", "list", "open"}, strings.ToLower(lastName(n.X))) {
				out = append(out, typeRead{lastName(n.Index), n.Pos()})
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Unmarshal" || lastName(f.X) != "json" {
				return true
			}
			into, ok := n.Args[1].(*ast.UnaryExpr)
			if !ok {
				out = append(out, typeRead{at: n.Pos()})
				return true
			}
			name := ""
			switch x := into.X.(type) {
			case *ast.Ident:
				name = vars[x.Name]
			case *ast.SelectorExpr: // a field of a record that was read, which says its type
				name = typeParameter(decl)
			}
			out = append(out, typeRead{name, n.Pos()})
		}
		return true
	})
	return out
}

// typeParameter returns the name of the only type parameter of a function.
func typeParameter(decl ast.Decl) string {
	f, ok := decl.(*ast.FuncDecl)
	if !ok || f.Type.TypeParams.NumFields() != 1 {
		return ""
	}
	return f.Type.TypeParams.List[0].Names[0].Name
}

// lastName returns the name of what is selected last, as Record of health.Record.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
