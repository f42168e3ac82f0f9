package api

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// notValues are what a text may say in figures although no value stands there:
// examples in quotation marks, characters, the numbers of specifications.
var notValues = regexp.MustCompile(`"[^"]*"|0-9|RFC [0-9]+|a-z`)

// TestDetailsAreMembers: every value in the text of a problem is a member, since
// no text is put together. A detail is written out where it is set, without
// figures, or made by Say; the message of a field by Wrong; both put values in by
// their names.
func TestDetailsAreMembers(t *testing.T) {
	fset := token.NewFileSet()
	texts := 0
	for _, dir := range []string{"../ingest", "../mcpapi", "."} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(fset, name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			constant := func(what string, e ast.Expr) {
				t.Helper()
				lit, ok := e.(*ast.BasicLit)
				if !ok {
					t.Errorf("%s: %s is put together; use Say or Wrong", fset.Position(e.Pos()), what)
					return
				}
				texts++
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				if figure := strings.IndexAny(notValues.ReplaceAllString(text, ""), "0123456789"); figure >= 0 {
					t.Errorf("%s: %q has a figure that is no member", fset.Position(e.Pos()), text)
				}
			}
			for _, decl := range file.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				// These make the texts, and hand on what their callers wrote out.
				if ok && slices.Contains([]string{"Say", "Wrong", "Refuse", "ProblemOf", "invalid", "badKey", "keyReused", "parameter", "refuseField", "pick", "at", "EventRefusal"}, fn.Name.Name) {
					continue
				}
				ast.Inspect(decl, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.CompositeLit:
						id, _ := n.Type.(*ast.Ident)
						if selector, ok := n.Type.(*ast.SelectorExpr); ok {
							id = selector.Sel
						}
						if id == nil || id.Name != "Refusal" && id.Name != "FieldError" {
							break
						}
						for _, element := range n.Elts {
							pair := element.(*ast.KeyValueExpr)
							if key := pair.Key.(*ast.Ident).Name; key == "Detail" || key == "Message" {
								constant(key, pair.Value)
							}
						}
					case *ast.AssignStmt:
						for i, left := range n.Lhs {
							if s, ok := left.(*ast.SelectorExpr); ok && s.Sel.Name == "Detail" && len(n.Rhs) == len(n.Lhs) {
								constant("Detail", n.Rhs[i])
							}
						}
					case *ast.CallExpr:
						called := ""
						switch f := n.Fun.(type) {
						case *ast.Ident:
							called = f.Name
						case *ast.SelectorExpr:
							called = f.Sel.Name
						}
						if at, ok := map[string]int{"Say": 0, "Wrong": 2, "invalid": 2, "badKey": 0, "keyReused": 1, "parameter": 2, "refuseField": 2}[called]; ok && len(n.Args) > at {
							if id, ok := n.Args[at].(*ast.Ident); !ok || fn == nil || fn.Name.Name != "gateRefusal" || id.Name != "text" {
								constant(called, n.Args[at])
							}
						}
					}
					return true
				})
			}
		}
	}
	if texts < 80 {
		t.Fatalf("only %d texts were found", texts)
	}
}
