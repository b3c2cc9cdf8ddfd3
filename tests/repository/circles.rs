//! Circles of imports: files, or folders, that need each other in a loop.
//!
//! Every file is parsed. A `use` and a qualified path lead from the file that has them to the file
//! that *defines* what they name: a name that a folder re-exports counts for the file it comes
//! from. `mod x;` is no import. Code of tests is left out, and calls of methods are not seen.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use syn::visit::Visit;

use crate::source::{Source, rust};

/// Most files that may import each other in a loop.
const FILES_IN_A_CIRCLE_MAX: usize = 3;

/// A module by the names on the way to it from the root of its package.
type Module = Vec<String>;

#[test]
fn imports_make_no_circles() {
    let found: Vec<String> =
        packages(rust()).iter().flat_map(|package| package.too_large_circles()).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn a_circle_is_seen() {
    let file = |path: &str, text: &str| Source::of(&format!("a/src/{path}"), text);
    let circles = |files: Vec<Source>| {
        let packages = packages(files);
        let [package] = packages.as_slice() else { panic!("one package") };
        (package.circles_of_files(), package.too_large_circles().len())
    };
    // b imports c by a name that the folder re-exports; c imports b by a path in its code.
    let files = vec![
        file("lib.rs", "mod b; mod c;"),
        file("b.rs", "use crate::c::Thing; pub fn f() {}"),
        file("c/mod.rs", "mod d; pub use d::Thing;"),
        file("c/d.rs", "pub struct Thing; fn g() { crate::b::f() }"),
    ];
    let (circles_found, too_large) = circles(files);
    assert_eq!(circles_found, [["src/b.rs", "src/c/d.rs"]]);
    assert_eq!(too_large, 0, "two files may import each other, a file and a folder too");
    let files = vec![
        file("lib.rs", "mod b; mod c;"),
        file("b/mod.rs", "pub mod x;"),
        file("b/x.rs", "use crate::c::y::Y; pub struct X;"),
        file("c/mod.rs", "pub mod y; #[cfg(test)] mod tests { use crate::b::x::X; }"),
        file("c/y.rs", "use crate::b::x; pub struct Y;"),
    ];
    assert_eq!(circles(files).1, 1, "two folders may not");
    let ring = |n: usize| {
        let name = move |i: usize| format!("f{}", i % n);
        (0..n).map(move |i| {
            file(
                &format!("{}.rs", name(i)),
                &format!("use crate::{}::Z; pub struct Z;", name(i + 1)),
            )
        })
    };
    assert_eq!(circles(ring(3).collect()).1, 0);
    assert_eq!(circles(ring(4).collect()).1, 1);
}

/// The files of one package and which imports which.
struct Package {
    name: String,
    files: BTreeMap<Module, File>,
}

struct File {
    path: String,
    imports: Vec<Module>,
    /// Public names that come from elsewhere, and where from.
    re_exports: BTreeMap<String, Module>,
    /// Folders or files of which all public names are re-exported.
    globs: Vec<Module>,
}

/// Groups files by the folder above `src/`.
fn packages(files: Vec<Source>) -> Vec<Package> {
    let mut found: BTreeMap<String, BTreeMap<Module, File>> = BTreeMap::new();
    for source in files {
        let Some((name, path)) = source.path.split_once("/src/") else { continue };
        if is_of_tests(path) {
            continue;
        }
        let module = module_of(path);
        let file = read(&source, path, &module);
        // `main.rs` beside `lib.rs` is a root as well: both are the empty module.
        let files = found.entry(name.to_string()).or_default();
        if let Some(root) = files.get_mut(&module) {
            root.imports.extend(file.imports);
        } else {
            files.insert(module, file);
        }
    }
    found.into_iter().map(|(name, files)| Package { name, files }).collect()
}

fn is_of_tests(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name == "tests.rs"
        || name.ends_with("_tests.rs")
        || path.split('/').any(|part| matches!(part, "tests" | "testing" | "bin"))
}

fn module_of(path: &str) -> Module {
    let mut parts: Module = path.trim_end_matches(".rs").split('/').map(String::from).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

fn read(source: &Source, path: &str, module: &[String]) -> File {
    let parsed = syn::parse_file(&source.text)
        .unwrap_or_else(|error| panic!("{}: cannot be parsed: {error}", source.path));
    let mut reader =
        Reader { here: module.to_vec(), depth: 0, imports: Vec::new(), uses: Vec::new() };
    reader.visit_file(&parsed);
    let mut file = File {
        path: format!("src/{path}"),
        imports: reader.imports,
        re_exports: BTreeMap::new(),
        globs: Vec::new(),
    };
    for (target, name, is_public) in reader.uses {
        match (is_public, name) {
            (true, Some(name)) => drop(file.re_exports.insert(name, target)),
            (true, None) => file.globs.push(target),
            (false, _) => file.imports.push(target),
        }
    }
    file
}

/// Collects the paths that a file names, as absolute ones of its package.
struct Reader {
    here: Module,
    /// How many inline modules are open.
    depth: usize,
    imports: Vec<Module>,
    /// Target, name under which it is known here (none for a glob), and whether it is public.
    uses: Vec<(Module, Option<String>, bool)>,
}

impl Reader {
    /// The absolute path that these names stand for; none when they begin with another package.
    fn absolute(&self, names: &[String]) -> Option<Module> {
        let mut base = match names.first()?.as_str() {
            "crate" => return Some(names[1..].to_vec()),
            "self" => self.here.clone(),
            "super" => self.here[..self.here.len().checked_sub(1)?].to_vec(),
            _ => return None,
        };
        let mut rest = &names[1..];
        while rest.first().is_some_and(|name| name == "super") {
            base.pop()?;
            rest = &rest[1..];
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    fn add_use(&mut self, tree: &syn::UseTree, before: &[String], is_public: bool) {
        let mut names = before.to_vec();
        match tree {
            syn::UseTree::Path(path) => {
                names.push(path.ident.to_string());
                self.add_use(&path.tree, &names, is_public);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, before, is_public);
                }
            }
            syn::UseTree::Name(name) => self.add_name(names, &name.ident, None, is_public),
            syn::UseTree::Rename(name) => {
                self.add_name(names, &name.ident, Some(&name.rename), is_public);
            }
            syn::UseTree::Glob(_) => {
                if let Some(target) = self.absolute_or_child(&names) {
                    self.uses.push((target, None, is_public && self.depth == 0));
                }
            }
        }
    }

    fn add_name(
        &mut self,
        mut names: Module,
        name: &syn::Ident,
        rename: Option<&syn::Ident>,
        is_public: bool,
    ) {
        if name != "self" {
            names.push(name.to_string());
        }
        let known = rename.unwrap_or(name).to_string();
        if let Some(target) = self.absolute_or_child(&names) {
            self.uses.push((target, Some(known), is_public && self.depth == 0));
        }
    }

    /// A `use` may begin with a child module, which only the whole package tells from another
    /// package's name: those are kept below this module and dropped when there is none.
    fn absolute_or_child(&self, names: &[String]) -> Option<Module> {
        let is_plain = !matches!(names.first()?.as_str(), "crate" | "self" | "super");
        if !is_plain {
            return self.absolute(names);
        }
        let mut target = self.here.clone();
        target.extend_from_slice(names);
        Some(target)
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !attributes(item).iter().any(is_test_only) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let Some((_, items)) = &module.content else { return };
        self.here.push(module.ident.to_string());
        self.depth += 1;
        items.iter().for_each(|item| self.visit_item(item));
        self.depth -= 1;
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        self.add_use(&item.tree, &[], is_public);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Module = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if names.len() > 1 {
            self.imports.extend(self.absolute(&names));
        }
        syn::visit::visit_path(self, path);
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]`, also as one of several conditions.
fn is_test_only(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let words = list.tokens.to_string();
    list.path.is_ident("cfg") && words.split([' ', '(', ')', ',']).any(|word| word == "test")
}

impl Package {
    /// The file that defines what a path names; none when it is not of this package.
    fn defining(&self, path: &[String], hops: usize) -> Option<&Module> {
        let known = (0..=path.len()).rev().find(|&n| self.files.contains_key(&path[..n]))?;
        let (module, file) = self.files.get_key_value(&path[..known])?;
        let Some(name) = path.get(known) else { return Some(module) };
        if hops == 0 {
            return Some(module);
        }
        if let Some(target) = file.re_exports.get(name) {
            return self.defining(target, hops - 1).or(Some(module));
        }
        let globs = file.globs.iter().filter_map(|target| self.defining(target, hops - 1));
        match globs.collect::<Vec<_>>().as_slice() {
            // A name that is not re-exported by itself may come from the one folder that is.
            [only] if !self.files[module].path.ends_with("lib.rs") => Some(only),
            _ => Some(module),
        }
    }

    /// Pairs of files, the second imported by the first.
    fn edges(&self) -> BTreeSet<(&Module, &Module)> {
        let mut edges = BTreeSet::new();
        for (module, file) in &self.files {
            for import in &file.imports {
                // A plain first name of a `use` that is no child module is another package's.
                let is_child = import.len() > module.len() && import.starts_with(module);
                let is_known = !is_child || self.files.contains_key(&import[..=module.len()]);
                let target = self.defining(import, 4).filter(|_| is_known);
                edges.extend(target.filter(|target| *target != module).map(|to| (module, to)));
            }
        }
        edges
    }

    /// Paths of the files that import each other in a loop.
    fn circles_of_files(&self) -> Vec<Vec<String>> {
        let graph = DiGraphMap::<&Module, ()>::from_edges(self.edges());
        let circles = tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1);
        circles
            .map(|files| {
                let mut paths: Vec<String> =
                    files.into_iter().map(|file| self.files[file].path.clone()).collect();
                paths.sort();
                paths
            })
            .collect()
    }

    /// Folders with one parent that import each other in a loop, whatever file does it.
    fn circles_of_folders(&self) -> Vec<Vec<String>> {
        let is_folder = |path: &[String]| {
            self.files.keys().any(|file| file.len() > path.len() && file.starts_with(path))
        };
        let mut found = Vec::new();
        let parents: BTreeSet<&[String]> =
            self.files.keys().flat_map(|file| (0..file.len()).map(|n| &file[..n])).collect();
        for parent in parents {
            let child = |file: &'_ Module| {
                (file.len() > parent.len() && file.starts_with(parent))
                    .then(|| file[..=parent.len()].join("/"))
            };
            let pairs: Vec<(String, String)> = self
                .edges()
                .into_iter()
                .filter_map(|(from, to)| Some((child(from)?, child(to)?)))
                .filter(|(from, to)| from != to)
                .collect();
            let graph = DiGraphMap::<&str, ()>::from_edges(
                pairs.iter().map(|(from, to)| (from.as_str(), to.as_str())),
            );
            for circle in tarjan_scc(&graph) {
                let folders = circle.iter().filter(|name| {
                    let path: Module = name.split('/').map(String::from).collect();
                    is_folder(&path)
                });
                if circle.len() > 1 && folders.count() > 1 {
                    let mut names: Vec<String> = circle.into_iter().map(String::from).collect();
                    names.sort();
                    found.push(names);
                }
            }
        }
        found
    }

    fn too_large_circles(&self) -> Vec<String> {
        let files = self.circles_of_files().into_iter();
        let files = files.filter(|circle| circle.len() > FILES_IN_A_CIRCLE_MAX);
        let folders = self.circles_of_folders().into_iter();
        let files = files.map(|circle| ("files", circle));
        files
            .chain(folders.map(|circle| ("folders", circle)))
            .map(|(what, circle)| {
                let names = circle.join(" ");
                format!("{}: {} {what} import each other: {names}", self.name, circle.len())
            })
            .collect()
    }
}
