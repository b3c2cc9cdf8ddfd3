//! The modules of the coordinator's page and of the report as one script.
//!
//! A page in one file cannot import: each module becomes a function that returns its exports, after
//! the modules that it imports. The modules keep to the forms that are known here: an `import` ends
//! at a semicolon, `export` stands before a name, and imports make no circle.

use std::collections::BTreeSet;
use std::fmt::Write;

use memtape_coordinator::page_script;

/// The module that imports all others.
const FIRST: &str = "/report.js";

/// The script.
pub(crate) fn script() -> String {
    let mut bundle =
        Bundle { text: "'use strict';\nconst modules = {};\n".into(), ..Bundle::default() };
    bundle.add(FIRST);
    bundle.text
}

fn module(path: &str) -> &'static str {
    match path {
        FIRST => include_str!("report.js"),
        "/files.js" => include_str!("files.js"),
        _ => page_script(path).unwrap_or_default(),
    }
}

#[derive(Default)]
struct Bundle {
    added: BTreeSet<String>,
    text: String,
}

impl Bundle {
    fn add(&mut self, path: &str) {
        if !self.added.insert(path.to_string()) {
            return;
        }
        let (mut body, mut exported) = (String::new(), Vec::new());
        let mut lines = module(path).lines();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("import ") {
                let mut statement = rest.to_string();
                while !statement.ends_with(';') {
                    let Some(line) = lines.next() else { break };
                    statement.push_str(line);
                }
                let Some((names, from)) = statement.split_once(" from ") else { continue };
                let target = beside(path, from.trim_matches(['\'', ';']));
                self.add(&target);
                let names = names.trim_start_matches("* as ");
                let _ = writeln!(body, "const {names} = modules['{target}'];");
            } else if let Some(rest) = line.strip_prefix("export ") {
                exported.extend(name(rest));
                let _ = writeln!(body, "{rest}");
            } else {
                let _ = writeln!(body, "{line}");
            }
        }
        let exported = exported.join(", ");
        let _ = writeln!(
            self.text,
            "modules['{path}'] = (() => {{\n{body}return {{ {exported} }};\n}})();"
        );
    }
}

/// The path of a module that another imports as `./x.js` or `../folder/x.js`.
fn beside(path: &str, name: &str) -> String {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    match name.strip_prefix("../") {
        Some(name) => format!("/{name}"),
        None => format!("{folder}/{}", name.trim_start_matches("./")),
    }
}

/// The name that `async function name(…)`, `const name = …` or `class Name …` declares.
fn name(declaration: &str) -> Option<&str> {
    let is_name = |word: &&str| !matches!(*word, "" | "async" | "function" | "const" | "class");
    declaration.split(|c: char| !c.is_alphanumeric() && c != '_').find(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_comes_once_and_after_its_imports() {
        let script = script();
        let mut defined = Vec::new();
        for line in script.lines() {
            assert!(!line.starts_with("import ") && !line.starts_with("export "), "{line}");
            let path = |rest: &str| rest.split('\'').next().unwrap_or_default().to_string();
            if let Some(rest) = line.strip_prefix("modules['") {
                defined.push(path(rest));
            } else if let Some((_, rest)) = line.split_once("} = modules['") {
                assert!(defined.contains(&path(rest)), "{line}");
            }
        }
        let distinct: BTreeSet<&String> = defined.iter().collect();
        assert_eq!(distinct.len(), defined.len());
        assert_eq!(defined.last().map(String::as_str), Some(FIRST));
        for path in ["/api.js", "/views/incident.js", "/views/capture.js", "/views/job.js"] {
            assert!(defined.iter().any(|of| of == path), "{path}");
        }
        for exported in ["memoryChart };", "NotFound, ", "isKnown, bytes"] {
            assert!(script.contains(exported), "{exported}");
        }
    }

    #[test]
    fn declarations_have_names() {
        for (declaration, expected) in [
            ("async function get(path) {", "get"),
            ("const link = (view, id) =>", "link"),
            ("class NotFound extends Error {}", "NotFound"),
        ] {
            assert_eq!(name(declaration), Some(expected));
        }
    }
}
