package architecture

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// laws is what check holds a tree to. Package lists hold directories relative
// to the module root; "x/..." stands for x and everything below it.
type laws struct {
	module              string
	levels              [][]string
	standalone          []string
	standaloneImporters []string
	data                []string
	pure                map[string][]string
	confined            map[string][]string
	unreachable         map[string][]string
	httpClients         []string
}

// Effects of the standard library that pure code may not import. An entry
// covers the packages below it unless pureExceptions names them.
var (
	effects = []string{
		"context", "crypto/rand", "database/sql", "expvar", "flag", "io/ioutil",
		"log", "math/rand", "net", "os", "path/filepath", "plugin", "runtime",
		"sync", "syscall", "testing", "unsafe",
	}
	// Parsers of text that happen to live below net.
	pureExceptions = []string{"net/mail", "net/netip", "net/url"}

	clocks = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

	clientNames = []string{
		"Client", "DefaultClient", "DefaultTransport", "Get", "Head", "NewRequest",
		"NewRequestWithContext", "Post", "PostForm", "Transport",
	}

	// Names that say where code was put and not what it gives.
	emptyNames = []string{"common", "helper", "helpers", "misc", "types", "util", "utils"}
)

// A violation names one breach and where it is.
type violation struct {
	where string // "dir/file.go:line", "dir" or "go.mod:line"
	rule  string // stable word, used by the tests below
	what  string
}

func (v violation) String() string { return fmt.Sprintf("%s: %s: %s", v.where, v.rule, v.what) }

type importSpec struct {
	path, where string
	name        string // identifier by which the file refers to it
}

type source struct {
	name    string
	test    bool
	syntax  *ast.File
	imports []importSpec
	fset    *token.FileSet
}

func (s source) at(p token.Pos) string { return s.name + ":" + strconv.Itoa(s.fset.Position(p).Line) }

type tree struct {
	module   string
	dirs     map[string][]source // directory to its files, in name order
	replaces []violation
}

// readTree parses every Go file the go command would consider part of the root
// module: directories named testdata, starting with "." or "_", and nested
// modules are left out. The go.mod files of nested modules are read all the
// same.
func readTree(fsys fs.FS) (tree, error) {
	tr := tree{dirs: map[string][]source{}}
	fset := token.NewFileSet()
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name != "." && (base == "testdata" || base[0] == '.' || base[0] == '_') {
				return fs.SkipDir
			}
			return nil
		}
		switch {
		case base == "go.mod":
			return tr.readModule(fsys, name)
		case path.Ext(base) != ".go" || base[0] == '.' || base[0] == '_':
			return nil
		}
		nested, err := inNestedModule(fsys, path.Dir(name))
		if err != nil || nested {
			return err
		}
		src, err := readSource(fsys, fset, name)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		tr.dirs[dir] = append(tr.dirs[dir], src)
		return nil
	})
	return tr, err
}

func inNestedModule(fsys fs.FS, dir string) (bool, error) {
	for ; dir != "."; dir = path.Dir(dir) {
		found, err := fs.Glob(fsys, path.Join(dir, "go.mod"))
		if err != nil || len(found) > 0 {
			return len(found) > 0, err
		}
	}
	return false, nil
}

// readModule notes the root's module path and every replace directive. A
// replaced requirement is ignored by whoever installs the module, so what was
// tested is not what they get.
func (tr *tree) readModule(fsys fs.FS, name string) error {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "module":
			if name == "go.mod" {
				tr.module = fields[1]
			}
		case "replace", "replace(":
			tr.replaces = append(tr.replaces, violation{
				fmt.Sprintf("%s:%d", name, n), "replace", "go.mod has a replace directive",
			})
		}
	}
	return nil
}

func readSource(fsys fs.FS, fset *token.FileSet, name string) (source, error) {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return source{}, err
	}
	// The whole file, not parser.ImportsOnly: most laws look at bodies, and
	// parsing twice costs more than parsing once.
	syntax, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, fmt.Errorf("parse %s: %w", name, err)
	}
	src := source{name: name, test: strings.HasSuffix(name, "_test.go"), syntax: syntax, fset: fset}
	for _, spec := range syntax.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return source{}, fmt.Errorf("parse %s: import %s: %w", name, spec.Path.Value, err)
		}
		imp := importSpec{path: target, where: src.at(spec.Pos()), name: path.Base(target)}
		if spec.Name != nil {
			imp.name = spec.Name.Name
		}
		src.imports = append(src.imports, imp)
	}
	return src, nil
}

// refersTo calls found for each use of pkg.name in the file with name in names,
// and for a dot import of pkg, which hides such uses from a reader and from us.
func (s source) refersTo(pkg string, names []string, found func(where, what string)) {
	for _, imp := range s.imports {
		if imp.path != pkg {
			continue
		}
		if imp.name == "." {
			found(imp.where, "dot import of "+pkg)
			continue
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || !slices.Contains(names, sel.Sel.Name) {
				return true
			}
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == imp.name {
				found(s.at(sel.Pos()), path.Base(pkg)+"."+sel.Sel.Name)
			}
			return true
		})
	}
}

// check returns every breach, in order of place, so that one run shows all.
func (l laws) check(tr tree) []violation {
	out := slices.Clone(tr.replaces)
	report := func(where, rule, format string, args ...any) {
		out = append(out, violation{where, rule, fmt.Sprintf(format, args...)})
	}
	for _, dir := range slices.Sorted(maps.Keys(tr.dirs)) {
		files := tr.dirs[dir]
		l.checkPlace(dir, report)
		l.checkNames(dir, files, report)
		l.checkComment(dir, files, report)
		l.checkLeaks(dir, files, report)
		checkGlobals(files, report)
		for _, src := range files {
			checkInit(src, report)
			if src.test {
				continue // what ships is bound by levels; its tests may reach for any double
			}
			l.checkImports(dir, src, report)
			l.checkPurity(dir, src, report)
			l.checkClients(dir, src, report)
		}
	}
	l.checkReach(tr, report)
	slices.SortFunc(out, func(a, b violation) int {
		return cmp.Or(cmp.Compare(a.where, b.where), cmp.Compare(a.rule, b.rule), cmp.Compare(a.what, b.what))
	})
	return out
}

type reporter func(where, rule, format string, args ...any)

// levelOf returns the index of the level that lists dir, or -1.
func (l laws) levelOf(dir string) int {
	return slices.IndexFunc(l.levels, func(dirs []string) bool { return matches(dirs, dir) })
}

func (l laws) checkPlace(dir string, report reporter) {
	if l.levelOf(dir) < 0 && !matches(l.standalone, dir) && !matches(l.data, dir) {
		report(dir, "no level", "the package is in no level: add it to the table in tests/architecture")
	}
}

func (l laws) checkImports(dir string, src source, report reporter) {
	leaf := matches(l.standalone, dir) || matches(l.data, dir)
	for _, imp := range src.imports {
		target, ours := l.ours(imp.path)
		if leaf && (ours || thirdParty(imp.path)) {
			report(imp.where, "standard only", "%s imports %s; it may use the standard library only", dir, imp.path)
			continue
		}
		if !ours {
			for prefix, allowed := range l.confined {
				if under(imp.path, prefix) && !matches(allowed, dir) {
					report(imp.where, "confined", "%s imports %s; only %s may", dir, imp.path, strings.Join(allowed, ", "))
				}
			}
			continue
		}
		from, to := l.levelOf(dir), l.levelOf(target)
		switch {
		case matches(l.data, target):
		case matches(l.standalone, target):
			if !matches(l.standaloneImporters, dir) {
				report(imp.where, "standalone", "%s imports %s; only %s may", dir, target, strings.Join(l.standaloneImporters, ", "))
			}
		case from >= 0 && to >= from:
			report(imp.where, "level", "%s (level %d) imports %s (level %d); only lower levels may be imported", dir, from, target, to)
		case to < 0:
			report(imp.where, "level", "%s imports %s, which is in no level", dir, target)
		}
	}
}

func (l laws) checkPurity(dir string, src source, report reporter) {
	thirdParties, pure := l.pure[dir]
	if !pure {
		return
	}
	for _, imp := range src.imports {
		_, ours := l.ours(imp.path)
		switch {
		case ours:
		case thirdParty(imp.path):
			if !slices.ContainsFunc(thirdParties, func(p string) bool { return under(imp.path, p) }) {
				report(imp.where, "pure", "%s is pure and imports %s, which is not on its list", dir, imp.path)
			}
		case slices.ContainsFunc(effects, func(p string) bool { return under(imp.path, p) }) &&
			!slices.Contains(pureExceptions, imp.path):
			report(imp.where, "pure", "%s is pure and imports %s", dir, imp.path)
		}
	}
	src.refersTo("time", clocks, func(where, what string) {
		report(where, "pure", "%s is pure and uses %s; the time is an argument", dir, what)
	})
	ast.Inspect(src.syntax, func(n ast.Node) bool {
		if stmt, ok := n.(*ast.GoStmt); ok {
			report(src.at(stmt.Pos()), "pure", "%s is pure and starts a goroutine", dir)
		}
		return true
	})
}

func (l laws) checkClients(dir string, src source, report reporter) {
	if matches(l.httpClients, dir) {
		return
	}
	src.refersTo("net/http", clientNames, func(where, what string) {
		report(where, "http client", "%s uses %s; requests leave through %s only", dir, what, strings.Join(l.httpClients, ", "))
	})
}

func (l laws) checkNames(dir string, files []source, report reporter) {
	if slices.Contains(emptyNames, path.Base(dir)) {
		report(dir, "name", "%q says nothing about what the package gives", path.Base(dir))
	}
	seen := map[string]bool{}
	for _, src := range files {
		name := strings.TrimSuffix(src.syntax.Name.Name, "_test")
		if slices.Contains(emptyNames, name) && name != path.Base(dir) && !seen[name] {
			seen[name] = true
			report(src.at(src.syntax.Name.Pos()), "name", "%q says nothing about what the package gives", name)
		}
	}
}

func (l laws) checkComment(dir string, files []source, report reporter) {
	var have []string
	for _, src := range files {
		// Text leaves directives out: a lone //go:generate is not a comment.
		if text := src.syntax.Doc.Text(); text != "" {
			have = append(have, src.name)
			if name := src.syntax.Name.Name; name != "main" && !strings.HasPrefix(text, "Package "+name) {
				report(src.at(src.syntax.Doc.Pos()), "package comment", "it does not start with %q", "Package "+name)
			}
		}
	}
	if len(have) != 1 {
		report(dir, "package comment", "want exactly one, have %d %v", len(have), have)
	}
}

func checkInit(src source, report reporter) {
	for _, decl := range src.syntax.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			report(src.at(fn.Pos()), "init", "init runs before main can say anything about it; call it by name")
		}
	}
}

// checkGlobals lets a package variable be a table or an error, never state: no
// function may write it, take its address or delete from it, and its declared
// type may not be a lock, a pool or an atomic. Not seen: a write by a method
// with a pointer receiver, and writes in a function that declares the same name.
func checkGlobals(files []source, report reporter) {
	globals := map[string]bool{}
	for _, src := range files {
		if src.test {
			continue
		}
		for _, decl := range src.syntax.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			for _, spec := range gen.Specs {
				vars, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for _, name := range vars.Names {
					globals[name.Name] = name.Name != "_"
				}
				if sel, ok := vars.Type.(*ast.SelectorExpr); ok {
					if id, ok := sel.X.(*ast.Ident); ok && (id.Name == "sync" || id.Name == "atomic") {
						report(src.at(vars.Pos()), "global", "%s is state shared by the whole program", vars.Names[0].Name)
					}
				}
			}
		}
	}
	for _, src := range files {
		if src.test {
			continue
		}
		for _, decl := range src.syntax.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			local := declaredIn(fn)
			written := func(e ast.Expr) {
				if id := root(e); id != nil && globals[id.Name] && !local[id.Name] {
					report(src.at(e.Pos()), "global", "%s changes the package variable %s", fn.Name.Name, id.Name)
				}
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					if n.Tok != token.DEFINE {
						for _, e := range n.Lhs {
							written(e)
						}
					}
				case *ast.IncDecStmt:
					written(n.X)
				case *ast.UnaryExpr:
					if n.Op == token.AND {
						written(n.X)
					}
				case *ast.CallExpr:
					if id, ok := n.Fun.(*ast.Ident); ok && len(n.Args) > 0 && (id.Name == "delete" || id.Name == "clear") {
						written(n.Args[0])
					}
				}
				return true
			})
		}
	}
}

// declaredIn returns every name the function declares anywhere inside itself.
func declaredIn(fn *ast.FuncDecl) map[string]bool {
	names := map[string]bool{}
	add := func(exprs ...ast.Expr) {
		for _, e := range exprs {
			if id, ok := e.(*ast.Ident); ok {
				names[id.Name] = true
			}
		}
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			for _, id := range n.Names {
				add(id)
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				add(id)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				add(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				add(n.Key, n.Value)
			}
		}
		return true
	})
	return names
}

// root returns the variable that x, x.f, x[i], *x and (x) begin with.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// checkLeaks wants proof that goroutines end wherever they are started: by a go
// statement, or by the Go method of an errgroup or WaitGroup.
func (l laws) checkLeaks(dir string, files []source, report reporter) {
	var started string
	guarded := false
	for _, src := range files {
		if src.test {
			guarded = guarded || guardsLeaks(src)
		}
		ast.Inspect(src.syntax, func(n ast.Node) bool {
			if started == "" && startsGoroutine(n) {
				started = src.at(n.Pos())
			}
			return started == ""
		})
	}
	if started != "" && !guarded {
		report(started, "leak", "%s starts a goroutine and has no TestMain with goleak", dir)
	}
}

func startsGoroutine(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.CallExpr:
		sel, ok := n.Fun.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Go" && len(n.Args) == 1
	}
	return false
}

// guardsLeaks reports whether the file declares TestMain and calls goleak. The
// call may sit beside TestMain, for runners that wrap testing.M.
func guardsLeaks(src source) bool {
	main, calls := false, false
	for _, decl := range src.syntax.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		main = main || (ok && fn.Recv == nil && fn.Name.Name == "TestMain")
	}
	src.refersTo("go.uber.org/goleak", []string{"VerifyTestMain", "Find"}, func(string, string) { calls = true })
	return main && calls
}

// checkReach follows imports between our packages through any number of steps.
func (l laws) checkReach(tr tree, report reporter) {
	graph := map[string][]string{}
	for dir, files := range tr.dirs {
		for _, src := range files {
			if src.test {
				continue
			}
			for _, imp := range src.imports {
				if target, ours := l.ours(imp.path); ours {
					graph[dir] = append(graph[dir], target)
				}
			}
		}
	}
	for from, forbidden := range l.unreachable {
		seen := map[string]bool{}
		var visit func(dir string, trail []string)
		visit = func(dir string, trail []string) {
			if seen[dir] {
				return
			}
			seen[dir] = true
			trail = append(slices.Clone(trail), dir)
			if matches(forbidden, dir) {
				report(from, "reach", "%s must not link %s: %s", from, dir, strings.Join(trail, " -> "))
			}
			for _, next := range slices.Sorted(slices.Values(graph[dir])) {
				visit(next, trail)
			}
		}
		visit(from, nil)
	}
}

// ours returns the directory of an import path of the module.
func (l laws) ours(importPath string) (dir string, ok bool) {
	if importPath == l.module {
		return ".", true
	}
	return strings.CutPrefix(importPath, l.module+"/")
}

// thirdParty reports whether the path is outside the standard library: the
// first element of such a path is a host name and has a dot.
func thirdParty(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return strings.Contains(first, ".")
}

func under(p, prefix string) bool { return p == prefix || strings.HasPrefix(p, prefix+"/") }

func matches(dirs []string, dir string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool {
		if prefix, open := strings.CutSuffix(d, "/..."); open {
			return under(dir, prefix)
		}
		return d == dir
	})
}
